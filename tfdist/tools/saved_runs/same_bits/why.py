"""Says from which step on two runs differ, and what is the cause: `python -m tfdist why A B`.

A and B are workdirs. Compared are the hashes of the states in metrics.jsonl, and what each start was made of: config,
code, data, versions, machine. Then both are trained again side by side on this machine, from the newest checkpoint of a
common state on, until they differ; the step that differs is taken apart. Nothing in A and B changes.

    tfdist why runs/digits runs/digits-again
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from tfdist.config.command_line import tool_words
from tfdist.tools.saved_runs.same_bits import causes, first_difference, sentences
from tfdist.tools.saved_runs.same_bits import chain as chain_lib
from tfdist.tools.saved_runs.same_bits.chain import Chain
from tfdist.tools.saved_runs.same_bits.replayed import ReplayError

USAGE = "DIR DIR [flags]"


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_bool("replay", True, "Train both again, to find the step. False: compare what was recorded.")


parse = tool_words.need_words(
    2, "tfdist why: give the workdirs of two runs, such as runs/digits runs/digits-again.", most=2
)


def main(argv: list[str]) -> int:
    """Prints what differs; returns 0 if all common reports are equal, 1 if not, 2 if runs cannot be compared."""
    return compare(*argv[1:], replay=flags.FLAGS.replay)


def compare(first_dir: str, second_dir: str, *, replay: bool) -> int:
    """As `main`; `replay`: whether the runs are trained again if they differ."""
    try:
        first, second = (chain_lib.read(Path(os.path.abspath(os.path.expanduser(d)))) for d in (first_dir, second_dir))
    except ValueError as error:
        print(f"tfdist why: {error}", file=sys.stderr)
        return 2
    if first.functions != second.functions:
        names = [", ".join(sorted(one.functions)) for one in (first, second)]
        print(f"tfdist why: the hashes are of different functions, {names[0]} and {names[1]}.", file=sys.stderr)
        return 2
    print(f"A  {first_dir}\nB  {second_dir}")
    equal, line = states(first, second)
    print(line, flush=True)
    interval = first_difference.find_interval(first, second) if replay else None
    if interval is None:
        for line in causes.lines(first, second):
            print(line)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            for line in _train_again(first, second, interval, Path(scratch)):
                print(line, flush=True)
    return 0 if equal else 1


def _train_again(first: Chain, second: Chain, interval: first_difference.Interval, scratch: Path) -> Iterator[str]:
    """Trains both runs again, and yields what that shows."""
    where = "the start" if interval.checkpoints == (None, None) else f"the checkpoint after step {interval.first}"
    yield f"trained again, side by side, from {where} to step {interval.different}"
    tried = None
    try:
        chains = (first, second)
        tasks = [first_difference.tasks_of(chains, index, interval, scratch / name) for index, name in enumerate("AB")]
        outcome = first_difference.search(chains, tasks, interval)
        yield from sentences.describe(outcome)
        if outcome.difference is not None:
            tried = causes.try_out(chains, interval, outcome.difference, scratch)
        elif outcome.not_reproduced:
            tried = causes.probable(first, second)
    except ReplayError as error:
        yield f"They could not be trained again: {error}"
    yield from causes.lines(first, second, tried)


def states(first: Chain, second: Chain) -> tuple[bool, str]:
    """Returns whether all reports that both runs have are equal, and a sentence about the first that is not."""
    common, different = chain_lib.common_steps(first, second), chain_lib.first_different(first, second)
    if not common:
        return False, "The runs have no step in common after which both wrote a hash."
    if different is None:
        ends = [max(one.by_step()) for one in (first, second)]
        text = "" if ends[0] == ends[1] else f"; A ends at step {ends[0]}, B at step {ends[1]}"
        return True, f"Equal: the states after all {len(common)} common reports, up to step {common[-1]}{text}."
    if first.hashes(different)[0] == second.hashes(different)[0]:
        changed = [name for name, one in (("A", first), ("B", second)) if len(one.hashes(different)) > 1]
        return False, (
            f"Equal up to step {different}; after it, without a step, the state changed in {' and in '.join(changed)}: "
            "by a restored checkpoint, an evaluation or a callback."
        )
    before = [step for step in common if step < different]
    if not before:
        return False, f"Different from the start: the states after step {different} are the first that both wrote."
    return False, (
        f"Equal up to step {before[-1]}; the states after step {different} differ. The first step that differs is one "
        f"of {before[-1] + 1} to {different}."
    )
