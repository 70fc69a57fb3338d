"""Plants causes of a difference between two runs, and asks `tfdist why`: `python -m tests.benchmark.planted_causes`.

Each pair of runs has a hash in metrics.jsonl after each step, which says where they begin to differ. `tfdist why` gets
copies with a hash at every fifth step only (of some pairs at each step, see `Case.every`). The table says whether it
named the right step, or an interval of records with it, and the right cause. `--only=PART` runs the cases with this
part in their kind or name, `--skip=N --take=M` some of them, `--keep=DIR` keeps the runs and the outputs.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable

import numpy as np

from tfdist.checkpoint import format as checkpoint_format

REPOSITORY = pathlib.Path(__file__).parents[2]
LAB = REPOSITORY / "tests" / "support" / "planted_lab.py"
STEPS, EPOCH = 30, 15
CONFIG = f"""
from tfdist import config as c

def get_config():
    return c.Config(
        model={{"target": "my_lab:network", "num_classes": 10}},
        data=c.Data(
            source={{"target": "my_lab:digits", "path": "digits.npz"}},
            prepare={{"target": "my_lab:prepare", "noise": 0.05}},
            batch_size=96,
        ),
        objective={{"target": "my_lab:objective"}},
        optimizer={{"target": "keras.optimizers:SGD", "momentum": 0.9, "weight_decay": 1e-3}},
        learning_rate=c.LearningRate(peak=0.05),
        train=c.Train(steps={STEPS}, clip_norm=100.0),
        evaluation=c.Evaluation(every=c.Every(steps=10)),
        checkpoint=c.Checkpoint(every=c.Every(steps=10), export=False),
        report=c.Report(every=c.Every(steps=1), tensorboard=False, state_hash="reports"),
    )
"""
Runs = dict[str, pathlib.Path]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A planted cause."""

    kind: str
    name: str
    # What the line of the cause, or the sentence about what is not recorded, must match.
    cause: str
    # Options of B; and of both.
    options: tuple[str, ...] = ()
    both: tuple[str, ...] = ()
    # Variables of the environment of B.
    env: tuple[tuple[str, str], ...] = ()
    # (folder of the lab) -> changes a file before B is trained.
    edit: Callable[[pathlib.Path], None] | None = None
    # (workdir of B) -> changes it: B is a copy of A that goes on from the checkpoint of step 20.
    resume: Callable[[pathlib.Path], None] | None = None
    # (workdir of B) -> changes its records.
    record: Callable[[pathlib.Path], None] | None = None
    # Steps between the hashes that `tfdist why` gets.
    every: int = 5


def field(name: str, value: str) -> str:
    """An option of the command."""
    return f"--config.{name}={value}"


def changed_line(old: str, new: str) -> Callable[[pathlib.Path], None]:
    """Replaces a part of the lab's module."""

    def edit(folder: pathlib.Path) -> None:
        text = (folder / "my_lab.py").read_text()
        assert text.count(old) == 1, old
        (folder / "my_lab.py").write_text(text.replace(old, new))

    return edit


def changed_data(example: int, feature: str, target: str = "other.npz") -> Callable[[pathlib.Path], None]:
    """Writes a file of data in which one pixel, or the label, of a training example is another one."""

    def edit(folder: pathlib.Path) -> None:
        with np.load(folder / "digits.npz") as file:
            arrays = dict(file)
        if feature == "image":
            arrays["image"][example, 3, 4, 0] ^= 1
        else:
            arrays["label"][example] = (arrays["label"][example] + 1) % 10
        np.savez(folder / target, **arrays)

    return edit


def flip_in_checkpoint(pattern: str, bit: int) -> Callable[[pathlib.Path], None]:
    """Flips a bit of the first variable that matches a pattern, in the checkpoint of step 20."""

    def resume(workdir: pathlib.Path) -> None:
        saved = checkpoint_format.verify(workdir / "checkpoints" / "step-00000020")
        arrays = dict(checkpoint_format.read(saved, list(saved.arrays)))
        name = next(one for one in arrays if re.search(pattern, one))
        arrays[name].reshape(-1).view(np.int32)[7] ^= 1 << bit
        checkpoint_format.write(workdir / "checkpoints", 20, arrays, saved.state)

    return resume


def other_version(package: str, version: str) -> Callable[[pathlib.Path], None]:
    """Writes another version of a package into the records of the starts."""

    def record(workdir: pathlib.Path) -> None:
        rewrite(workdir, lambda line: line["versions"].update({package: version}), kind="environment")

    return record


def rewrite(workdir: pathlib.Path, change: Callable[[dict], object], kind: str) -> None:
    """Changes the lines of a kind in metrics.jsonl; removes those for which `change` returns False."""
    path, kept = workdir / "metrics.jsonl", []
    for line in map(json.loads, path.read_text().splitlines()):
        if line["kind"] != kind or change(line) is not False:
            kept.append(json.dumps(line) + "\n")
    path.write_text("".join(kept))


def nothing(workdir: pathlib.Path) -> None:
    """Changes nothing."""


COUNTING, SETTABLE = (
    field("model.counting", "1.0"),
    field("learning_rate.schedule", "{'target': 'tfdist.zoo.schedules:settable'}"),
)


def lowering(factor: float) -> str:
    """The option of a callback."""
    return field("callbacks", f"[{{'target': 'my_lab:Lowering', 'factor': {factor}}}]")


def stepped(at: float) -> str:
    """The option of a schedule that falls at a part of the run."""
    return field("learning_rate.schedule", f"{{'target': 'tfdist.zoo.schedules:step', 'factor': 0.5, 'at': [{at}]}}")


FAULT = r"changed .* by something else: a fault of a device"
CASES = (
    Case(kind="seed", name="1", options=(field("seed", "1"),), cause=r"seed: A 0; B 1"),
    Case(kind="seed", name="7", options=(field("seed", "7"),), cause=r"seed: A 0; B 7"),
    Case(kind="one pixel", name="example 700", edit=changed_data(700, "image"),
         options=(field("data.source.path", "other.npz"),), cause=r"data\.source\.path"),
    Case(kind="one pixel", name="example 33", edit=changed_data(33, "image"),
         options=(field("data.source.path", "other.npz"),), cause=r"data\.source\.path"),
    Case(kind="one label", name="example 512", edit=changed_data(512, "label"),
         options=(field("data.source.path", "other.npz"),), cause=r"data\.source\.path"),
    Case(kind="one label", name="example 1201", edit=changed_data(1201, "label"),
         options=(field("data.source.path", "other.npz"),), cause=r"data\.source\.path"),
    Case(kind="order", name="not shuffled", options=(field("data.shuffle", "false"),), cause=r"data\.shuffle"),
    Case(kind="order", name="other part", options=(field("data.train_split", "train[1:]"),),
         cause=r"data\.train_split"),
    Case(kind="changed line of prepare", name="scale",
         edit=changed_line("tf.float32) / scale", "tf.float32) / (scale + 1e-5)"),
         cause=r"code +my_lab\.py.*scale \+ 1e-5"),
    Case(kind="changed line of prepare", name="from epoch 1",
         edit=changed_line("0.0 * tf.cast(epoch", "1e-3 * tf.cast(epoch"),
         cause=r"code +my_lab\.py.*1e-3"),
    Case(kind="rate of a callback", name="0.4", both=(SETTABLE, lowering(0.5)), options=(lowering(0.4),),
         cause=r"callbacks"),
    Case(kind="rate of a callback", name="none", both=(SETTABLE, lowering(0.5)), options=(field("callbacks", "[]"),),
         cause=r"callbacks"),
    Case(kind="threads", name="1 in an op", env=(("TF_NUM_INTRAOP_THREADS", "1"),), cause=r"threads"),
    Case(kind="threads", name="3 in an op", env=(("TF_NUM_INTRAOP_THREADS", "3"),), cause=r"threads"),
    Case(kind="dtype", name="bfloat16", options=(field("train.precision", "bfloat16"),), cause=r"train\.precision"),
    Case(kind="dtype", name="bfloat16 in a layer", options=(field("model.dtype", "mixed_bfloat16"),),
         cause=r"model\.dtype"),
    Case(kind="version", name="keras, a hash each step", env=(("PLANTED_LIBRARY", "1"),),
         record=other_version("keras", "3.14.0"), every=1, cause=r"cause.*versions +keras"),
    Case(kind="version", name="tensorflow", env=(("PLANTED_LIBRARY", "1"),),
         record=other_version("tensorflow", "2.21.1"), cause=r"cause.*versions +tensorflow"),
    Case(kind="flipped bit", name="in memory, a hash each step", env=(("PLANTED_FLIP", "12"),), every=1, cause=FAULT),
    Case(kind="flipped bit", name="in memory", env=(("PLANTED_FLIP", "20"),), cause=FAULT),
    Case(kind="flipped bit in a checkpoint", name="a weight", resume=flip_in_checkpoint("model/hidden/kernel", 9),
         cause=r"1 of \d+ variables differ: model/hidden/kernel \(element .*1 bit of 32"),
    Case(kind="flipped bit in a checkpoint", name="momentum",
         resume=flip_in_checkpoint(r"optimizer/.*momentum", 3),
         cause=r"1 of \d+ variables differ: optimizer/.*1 bit of 32"),
    Case(kind="dropout", name="seed", options=(field("model.seed", "6"),), cause=r"model\.seed"),
    Case(kind="dropout", name="rate", options=(field("model.rate", "0.31"),), cause=r"model\.rate"),
    Case(kind="evaluation changes the state", name="every 8 steps", both=(COUNTING,),
         options=(field("evaluation.every.steps", "8"),), cause=r"evaluation\.every\.steps"),
    Case(kind="evaluation changes the state", name="by 2", both=(COUNTING,), options=(field("model.counting", "2.0"),),
         cause=r"model\.counting"),
    Case(kind="other replicas", name="from step 20", resume=nothing, options=(field("cluster.logical_devices", "2"),),
         cause=r"replicas"),
    Case(kind="other replicas", name="from the start", options=(field("cluster.logical_devices", "2"),),
         cause=r"replicas"),
    Case(kind="batch size", name="48", options=(field("data.batch_size", "48"),), cause=r"data\.batch_size"),
    Case(kind="batch size", name="48 from step 20", resume=nothing,
         options=(field("data.batch_size", "48"), "--allow_config_changes"), cause=r"data\.batch_size"),
    Case(kind="schedule", name="falls later", both=(stepped(0.5),), options=(stepped(0.6),), cause=r"schedule\.at"),
    Case(kind="schedule", name="warm-up", options=(field("learning_rate.warmup_epochs", "1"),), cause=r"warmup_epochs"),
    Case(kind="augmentation", name="more noise", options=(field("data.prepare.noise", "0.06"),),
         cause=r"data\.prepare\.noise"),
    Case(kind="augmentation", name="other function", options=(
        field("data.prepare", "{'target': 'tfdist.zoo.prepare:image', 'scale': 0.0625, 'flip': True}"),),
        cause=r"data\.prepare"),
    Case(kind="weight decay", name="twice", options=(field("optimizer.weight_decay", "0.002"),), cause=r"weight_decay"),
    Case(kind="penalty", name="L2", options=(field("model.l2", "0.0002"),), cause=r"model\.l2"),
    Case(kind="initializer", name="glorot", options=(field("model.kernel", "glorot_uniform"),), cause=r"model\.kernel"),
    Case(kind="clipping", name="0.5", options=(field("train.clip_norm", "1.0"),), cause=r"train\.clip_norm"),
    Case(kind="loss", name="smoothing", options=(field("objective.smoothing", "0.1"),), cause=r"objective\.smoothing"),
    Case(kind="two causes", name="one acts later", both=(stepped(0.5),),
         options=(stepped(0.8), field("model.seed", "6")),
         cause=r"model\.seed"),
)  # fmt: skip


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process, with one processor type and no GPU."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": "", **variables}


def train(lab: pathlib.Path, workdir: pathlib.Path, *options: str, **variables: str) -> None:
    """Trains in the folder of the lab."""
    command = [sys.executable, "-m", "tfdist.main", "--config=my_config.py", f"--workdir={workdir}", *options]
    done = subprocess.run(command, cwd=lab, env=environment(**variables), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def make_lab(folder: pathlib.Path) -> None:
    """Writes module, config and data of the runs."""
    folder.mkdir(exist_ok=True)
    shutil.copy(LAB, folder / "my_lab.py")
    (folder / "my_config.py").write_text(CONFIG)
    if not (folder / "digits.npz").is_file():
        from tfdist.zoo import sources

        train_part, test = (sources.digits(split) for split in ("train", "test"))
        parts = {"": train_part, "_test": test}
        values = {f"{name}{end}": one.read(np.arange(len(one)))[name].numpy() for end, one in parts.items()
                  for name in ("image", "label")}  # fmt: skip
        np.savez(folder / "digits.npz", **values)


def hashes(workdir: pathlib.Path) -> dict[int, list[str]]:
    """The recorded hashes of each step."""
    found: dict[int, list[str]] = {}
    for line in map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines()):
        if line["kind"] == "state":
            found.setdefault(line["step"], []).append(line["hash"])
    return found


def first_different(first: pathlib.Path, second: pathlib.Path, resumed: bool) -> int | None:
    """The first step after which the states differ; for a changed checkpoint, the step of it."""
    ours, theirs = hashes(first), hashes(second)
    for step in sorted(ours.keys() & theirs.keys()):
        if ours[step][0] != theirs[step][0] or (
            resumed and step == 20 and len(set(theirs[step])) > len(set(ours[step]))
        ):
            return step
    return None


def thin(workdir: pathlib.Path, every: int) -> None:
    """Removes the hashes that would not be there with fewer reports."""
    rewrite(workdir, lambda line: line["step"] % every == 0, kind="state")


def named_step(text: str) -> tuple[int, int] | None:
    """The first and last step that the output names as the first that differs."""
    if found := re.search(r"Equal up to step (\d+); after it, without a step, the state changed in B", text):
        return int(found[1]), int(found[1])
    if found := re.search(r"The states before step 1 differ", text):
        return 0, 0
    if found := re.search(r"; in step (\d+) ", text) or re.search(r"what follows it, before step (\d+)", text):
        return int(found[1]), int(found[1])
    if found := re.search(r"was changed in one of the steps (\d+) to (\d+)", text):
        return int(found[1]), int(found[2])
    return None


def try_case(
    case: Case, folder: pathlib.Path, bases: dict[tuple[str, ...], pathlib.Path]
) -> tuple[bool, bool, bool, str]:
    """Returns whether the step is right, whether an interval with it is, whether the cause is, and the output."""
    lab = folder / "lab"
    make_lab(lab)
    if case.both not in bases:
        bases[case.both] = folder / f"base{len(bases)}"
        train(lab, bases[case.both], *case.both)
    base, here = bases[case.both], folder / re.sub(r"\W+", "_", f"{case.kind} {case.name}")
    shutil.copytree(base, here / "a")
    if case.edit is not None:
        case.edit(lab)
    if case.resume is not None:
        shutil.copytree(base, here / "b")
        (here / "b" / "finished.json").unlink()
        shutil.rmtree(here / "b" / "checkpoints" / "step-00000030")
        case.resume(here / "b")
    train(lab, here / "b", *case.both, *case.options, **dict(case.env))
    truth = first_different(here / "a", here / "b", case.resume is not None and case.resume is not nothing)
    if case.record is not None:
        case.record(here / "b")
    if truth is None:
        return False, False, False, "the runs do not differ"
    for name in "ab":
        thin(here / name, case.every)
    command = [sys.executable, "-m", "tfdist", "why", "a", "b"]
    done = subprocess.run(command, cwd=here, env=environment(), capture_output=True, text=True, timeout=900)
    text = done.stdout + done.stderr
    (here / "output").write_text(f"truth: step {truth}\n{text}")
    found = named_step(text)
    exact, within = found == (truth, truth), found is not None and found[0] <= truth <= found[1]
    lines = [line for line in text.splitlines() if line.startswith(("cause", "probable cause")) or "changed" in line
             or "variables differ" in line]  # fmt: skip
    cause = any(re.search(case.cause, line) for line in lines)
    return exact, within, cause, f"step {truth}; " + (text.splitlines()[4] if len(text.splitlines()) > 4 else text)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--take", type=int, default=len(CASES))
    parser.add_argument("--keep", default="")
    options = parser.parse_args()
    cases = [one for one in CASES if options.only in f"{one.kind} {one.name}"][options.skip :][: options.take]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(options.keep or scratch)
        folder.mkdir(exist_ok=True)
        bases: dict[tuple[str, ...], pathlib.Path] = {}
        right = np.zeros(3, int)
        print(f"{'kind':30} {'planted':28} step      cause")
        for case in cases:
            try:
                *found, text = try_case(case, folder, bases)
            except (
                AssertionError,
                KeyError,
                StopIteration,
                OSError,
            ) as error:  # A training failed: shown, and counted as wrong.
                found, text = (False, False, False), f"FAILED: {str(error)[-300:]}"
            right += found
            step = "right" if found[0] else "interval" if found[1] else "WRONG"
            print(
                f"{case.kind:30} {case.name:28} {step:9} {'right' if found[2] else 'WRONG':6} {text[:150]}", flush=True
            )
    print(f"{len(cases)} causes: the step {right[0]}, an interval with the step {right[1]}, the cause {right[2]}")


if __name__ == "__main__":
    main()
