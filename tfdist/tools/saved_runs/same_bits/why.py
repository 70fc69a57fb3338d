"""Says from which report on two runs differ, and what could be the cause: `python -m tfdist why A B`.

A and B are workdirs. Compared are the hashes of the states in metrics.jsonl, and what each start was made of: config,
code, data, versions, machine. Nothing is computed again.

    tfdist why runs/digits runs/digits-again
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdist.config import flags as config_flags
from tfdist.tools.saved_runs.same_bits import chain as chain_lib
from tfdist.tools.saved_runs.same_bits.chain import Chain

USAGE = "DIR DIR [flags]"
# Fields that change no state, but when it is looked at or where it is.
_WITHOUT_EFFECT = (
    *("config.report.", "config.evaluation.", "config.consistency.", "config.checkpoint.", "config.cluster."),
    *("config.train.call_seconds", "config.data.cache", "config.data.evaluation_", "git."),
)
# Beginnings of names -> what they are, in the order in which they are shown.
_GROUPS = {
    "config.": "config",
    "code.": "code",
    "data.": "data",
    "replicas": "replicas",
    "versions.": "versions",
    "": "machine",
}


def define_flags() -> None:
    """Defines no flags."""


def parse(argv: list[str]) -> list[str]:
    """Parses the command line; returns the program's name and the two directories."""
    rest = config_flags.parse_words(argv)
    if len(rest) != 3:
        sys.exit("tfdist why: give the workdirs of two runs, such as runs/digits runs/digits-again.")
    return rest


def main(argv: list[str]) -> int:
    """Prints what differs; returns 0 if all common reports are equal, 1 if not, 2 if runs cannot be compared."""
    try:
        first, second = (chain_lib.read(Path(word).expanduser()) for word in argv[1:])
    except ValueError as error:
        print(f"tfdist why: {error}", file=sys.stderr)
        return 2
    if first.functions != second.functions:
        names = [", ".join(sorted(one.functions)) for one in (first, second)]
        print(f"tfdist why: the hashes are of different functions, {names[0]} and {names[1]}.", file=sys.stderr)
        return 2
    print(f"A  {first.workdir}\nB  {second.workdir}")
    equal, line = states(first, second)
    print(line)
    for name, one in (("A", first), ("B", second)):
        for step in one.changed_between_steps():
            print(f"In {name} the state changed after step {step} without a step: by an evaluation or a callback.")
    for line in causes(first, second):
        print(line)
    return 0 if equal else 1


def states(first: Chain, second: Chain) -> tuple[bool, str]:
    """Returns whether all reports that both runs have are equal, and a sentence about the first that is not."""
    ours, theirs = first.by_step(), second.by_step()
    common = [step for step in ours if step in theirs]
    if not common:
        return False, "The runs have no step in common after which both wrote a hash."
    different = next((step for step in common if ours[step] != theirs[step]), None)
    if different is None:
        ends = "" if max(ours) == max(theirs) else f"; A ends at step {max(ours)}, B at step {max(theirs)}"
        return True, f"Equal: the states after all {len(common)} common reports, up to step {common[-1]}{ends}."
    before = [step for step in common if step < different]
    if not before:
        return False, f"Different from the start: the states after step {different} are the first that both wrote."
    return False, (
        f"Equal up to step {before[-1]}; the states after step {different} differ. The first step that differs is one "
        f"of {before[-1] + 1} to {different}."
    )


def causes(first: Chain, second: Chain) -> Iterator[str]:
    """Yields a line for each fact that differs between the runs; first those that can change a state."""
    differing = {
        name: (_values(first, name), _values(second, name))
        for name in dict.fromkeys(name for one in (first, second) for start in one.starts for name in start.facts)
    }
    differing = {name: pair for name, pair in differing.items() if pair[0] != pair[1]}
    effective = {name: pair for name, pair in differing.items() if not name.startswith(_WITHOUT_EFFECT)}
    if not effective:
        yield (
            "Nothing that was recorded and can change a state differs: config, code, data, versions, machine, "
            "replicas. What is not recorded: faults of a device, random numbers without a seed, files that code reads."
        )
    for group, title in _GROUPS.items():
        for name in [name for name in effective if name.startswith(group)]:
            yield _line(title, name.removeprefix(group if group.endswith(".") else ""), effective.pop(name))
    others = sorted(name for name in differing if name.startswith(_WITHOUT_EFFECT))
    if others:
        yield f"differ, too, and change no state: {', '.join(others)}"


def _values(chain: Chain, name: str) -> list[tuple[int, Any]]:
    """Returns the values of a fact, with the step from which each applies."""
    found: list[tuple[int, Any]] = []
    for start in chain.starts:
        value = start.facts.get(name)
        if not found or found[-1][1] != value:
            found.append((start.step, value))
    return found


def _line(title: str, name: str, pair: tuple[list[tuple[int, Any]], list[tuple[int, Any]]]) -> str:
    texts = []
    for values in pair:
        parts = [f"{value!r}" + (f" from step {step} on" if step else "") for step, value in values]
        texts.append(", ".join(parts) or "nothing")
    return f"{title:<9} {name}: A {texts[0]}; B {texts[1]}"
