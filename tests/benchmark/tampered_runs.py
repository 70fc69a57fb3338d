"""Tampers with finished runs, and lets `tfdist verify` check them: `python -m tests.benchmark.tampered_runs`.

A run has a checkpoint every 5 of 30 steps: 6 intervals. Each tampering is made in a copy; where steps were trained
otherwise, they really were, and the log was made to fit. All intervals are trained again, which shows in how many of
them the tampering is noticed, or that it is noticed without any. From this follows how often it is noticed with two
intervals, over 1,000 choices of the command, beside the probability that the command states. `--only=PART` runs some.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable

import h5py
import numpy as np

from tfdist.checkpoint import format as checkpoint_format

EVERY, STEPS, CHOSEN = 5, 30, 2
INTERVALS = STEPS // EVERY
REPOSITORY = pathlib.Path(__file__).parents[2]
LAB = REPOSITORY / "tests" / "support" / "tampered_lab.py"
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
        checkpoint=c.Checkpoint(every=c.Every(steps={EVERY}), keep=10),
        report=c.Report(every=c.Every(steps=1), tensorboard=False, state_hash="reports"),
    )
"""


def field(name: str, value: str) -> str:
    """An option of the command."""
    return f"--config.{name}={value}"


def rewrite(workdir: pathlib.Path, change: Callable[[dict], object], kind: str) -> None:
    """Changes the lines of a kind in metrics.jsonl; removes those for which `change` returns False."""
    path, kept = workdir / "metrics.jsonl", []
    for line in map(json.loads, path.read_text().splitlines()):
        if line["kind"] != kind or change(line) is not False:
            kept.append(json.dumps(line) + "\n")
    path.write_text("".join(kept))


def environment() -> dict[str, str]:
    """The environment of a process without a GPU."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}


def train(lab: pathlib.Path, workdir: pathlib.Path, *options: str) -> None:
    """Trains in the folder of the lab."""
    command = [sys.executable, "-m", "tfdist.main", "--config=my_config.py", f"--workdir={workdir}", *options]
    done = subprocess.run(command, cwd=lab, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def make_lab(folder: pathlib.Path) -> None:
    """Writes module, config and data of the runs."""
    folder.mkdir(exist_ok=True)
    shutil.copy(LAB, folder / "my_lab.py")
    (folder / "my_config.py").write_text(CONFIG)
    if not (folder / "digits.npz").is_file():
        from tfdist.zoo import sources

        arrays = {}
        for split, end in (("train", ""), ("test", "_test")):
            source = sources.digits(split)
            examples = source.read(np.arange(len(source)))
            arrays |= {f"{name}{end}": examples[name].numpy() for name in ("image", "label")}
        np.savez(folder / "digits.npz", **arrays)


@dataclasses.dataclass(frozen=True)
class Run:
    """A copy of the honest run."""

    lab: pathlib.Path
    workdir: pathlib.Path

    def checkpoint(self, step: int) -> pathlib.Path:
        """The directory of a checkpoint."""
        return self.workdir / "checkpoints" / f"step-{step:08d}"

    def train(self, *options: str) -> None:
        """Trains on."""
        (self.workdir / "finished.json").unlink(missing_ok=True)
        train(self.lab, self.workdir, "--allow_config_changes", "--allow_data_changes", *options)

    def return_to(self, step: int) -> None:
        """Removes the checkpoints after a step."""
        for path in (self.workdir / "checkpoints").glob("step-*"):
            if int(path.name[5:]) > step:
                shutil.rmtree(path)

    def hide_starts(self) -> None:
        """Removes the records of all starts but the first one from the log."""
        for kind in ("start", "environment", "data"):
            seen = []
            rewrite(self.workdir, lambda line, seen=seen: not seen and (seen.append(line) or True), kind)
        rewrite(self.workdir, lambda line: False, "event")


Tamper = Callable[[Run], None]


def array(step: int, name: str, change: Callable[[np.ndarray], object]) -> Tamper:
    """Changes a variable in a checkpoint, and its hashes."""

    def tamper(run: Run) -> None:
        saved = checkpoint_format.verify(run.checkpoint(step))
        arrays = dict(checkpoint_format.read(saved, list(saved.arrays)))
        arrays[name] = arrays[name].copy()
        change(arrays[name].reshape(-1))
        checkpoint_format.write(run.workdir / "checkpoints", step, arrays, saved.state)

    return tamper


def flip(values: np.ndarray) -> None:
    """Flips the lowest bit of an element."""
    values.view(np.uint8)[0] ^= 1


def double(values: np.ndarray) -> None:
    """Doubles all elements."""
    values *= 2


def other_checkpoint(run: Run) -> None:
    """Puts the weights of another step into a checkpoint."""
    saved, other = (checkpoint_format.verify(run.checkpoint(step)) for step in (10, 15))
    arrays = dict(checkpoint_format.read(other, list(other.arrays)))
    checkpoint_format.write(run.workdir / "checkpoints", 10, arrays, saved.state)


def exported(run: Run) -> None:
    """Flips a bit of a weight in the exported model."""
    path = run.workdir / "model.keras"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    weights = run.workdir / "weights.h5"
    weights.write_bytes(members["model.weights.h5"])
    with h5py.File(weights, "r+") as file:
        found: list[h5py.Dataset] = []
        file.visititems(lambda _, one: found.append(one) if isinstance(one, h5py.Dataset) and one.ndim == 4 else None)
        value = found[0][()]
        flip(value.reshape(-1))
        found[0][...] = value
    members["model.weights.h5"] = weights.read_bytes()
    weights.unlink()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def line(kind: str, step: int, **values: object) -> Tamper:
    """Changes a line of the log; values of None: removes it."""

    def change(record: dict) -> object:
        if record.get("step", step) != step:
            return True
        if not values:
            return False
        for name, value in values.items():
            record[name] = value(record[name]) if callable(value) else value
        return True

    return lambda run: rewrite(run.workdir, change, kind)


def swapped(run: Run) -> None:
    """Exchanges the hashes of the steps 12 and 13."""
    lines = map(json.loads, (run.workdir / "metrics.jsonl").read_text().splitlines())
    found = {each["step"]: each["hash"] for each in lines if each["kind"] == "state"}
    for step, other in ((12, 13), (13, 12)):
        line("state", step, hash=found[other])(run)


def config(*names: str, value: object) -> Tamper:
    """Changes a field of config.json."""

    def tamper(run: Run) -> None:
        path = run.workdir / "config.json"
        whole = section = json.loads(path.read_text())
        for name in names[:-1]:
            section = section[name]
        section[names[-1]] = value
        path.write_text(json.dumps(whole))

    return tamper


def data(example: int, feature: str) -> Tamper:
    """Changes one pixel, or the label, of a training example."""

    def tamper(run: Run) -> None:
        with np.load(run.lab / "digits.npz") as file:
            arrays = dict(file)
        if feature == "image":
            arrays["image"][example, 3, 4, 0] ^= 1
        else:
            arrays["label"][example] = (arrays["label"][example] + 1) % 10
        np.savez(run.lab / "digits.npz", **arrays)

    return tamper


def code(old: str, new: str) -> Tamper:
    """Changes a part of the code."""

    def tamper(run: Run) -> None:
        text = (run.lab / "my_lab.py").read_text()
        assert text.count(old) == 1, old
        (run.lab / "my_lab.py").write_text(text.replace(old, new))

    return tamper


def skipped(first: int, last: int) -> Tamper:
    """Does not train the steps after `first` up to `last`, and continues as if it had."""

    def tamper(run: Run) -> None:
        run.return_to(first)
        saved = checkpoint_format.verify(run.checkpoint(first))
        arrays = dict(checkpoint_format.read(saved, list(saved.arrays)))
        counter = next(name for name in arrays if name.endswith("iteration") or name.endswith("iterations"))
        arrays[counter] = np.asarray(last, arrays[counter].dtype)
        state = saved.state | {"step": last, "regular": last, "evaluated": last}
        checkpoint_format.write(run.workdir / "checkpoints", last, arrays, state)
        rewrite(run.workdir, lambda record: record["step"] <= first, "state")
        run.train()
        run.hide_starts()

    return tamper


def otherwise(first: int, last: int, *options: str, edit: Tamper | None = None) -> Tamper:
    """Trains the steps after `first` up to `last` with other options, or with other code or data."""

    def tamper(run: Run) -> None:
        run.return_to(first)
        if edit is not None:
            edit(run)
        run.train(field("train.steps", str(last)), *options)
        make_lab(run.lab)
        if (run.lab / "honest.npz").is_file():
            shutil.copy(run.lab / "honest.npz", run.lab / "digits.npz")
        run.train()
        run.hide_starts()

    return tamper


MODEL = "model/hidden/kernel"
TAMPERINGS: dict[str, Tamper] = {
    "a bit of a weight in the checkpoint of step 10": array(10, MODEL, flip),
    "a bit of a weight in the last checkpoint": array(30, MODEL, flip),
    "a weight doubled in the checkpoint of step 20": array(20, MODEL, double),
    "a bit of a moving statistic, step 15": array(15, "model/norm/moving_mean", flip),
    "the checkpoint of step 10 has the weights of 15": other_checkpoint,
    "a bit of a weight in model.keras": exported,
    "the hash of step 7 in the log": line("state", 7, hash="0" * 16),
    "the hash of step 10, a checkpoint's": line("state", 10, hash="0" * 16),
    "the hashes of steps 12 and 13 exchanged": swapped,
    "the hash of step 15 removed": line("state", 15),
    "the loss of step 8 in the log": line("train", 8, loss=lambda value: 0.9 * value),
    "the loss of step 29, by 1e-6": line("train", 29, loss=lambda value: value * (1 + 1e-6)),
    "the accuracy of the evaluation of step 20": line("evaluation", 20, accuracy=0.99),
    "the loss of the last evaluation": line("evaluation", 30, loss=0.01),
    "the hashes of the data in the log": line("data", 0, hashes=lambda found: dict.fromkeys(found, "0" * 16)),
    "the learning rate in config.json": config("learning_rate", "peak", value=0.051),
    "the seed in config.json": config("seed", value=3),
    "the rate of dropout in config.json": config("model", "rate", value=0.31),
    "one pixel of the data": data(700, "image"),
    "one label of the data": data(512, "label"),
    "a line of prepare": code("0.0 * tf.cast(epoch", "1e-4 * tf.cast(epoch"),
    "the steps 6 to 10 skipped": skipped(5, 10),
    "the steps 16 to 20 skipped": skipped(15, 20),
    "the steps 26 to 30 skipped": skipped(25, 30),
    "another learning rate in the steps 6 to 10": otherwise(5, 10, field("learning_rate.peak", "0.06")),
    "another order in the steps 21 to 25": otherwise(20, 25, field("seed", "9")),
    "less dropout in the steps 16 to 20": otherwise(15, 20, field("model.rate", "0.1")),
    "no augmentation in the steps 26 to 30": otherwise(25, 30, field("data.prepare.noise", "0.0")),
    "one pixel in the steps 11 to 15": otherwise(10, 15, edit=data(700, "image")),
    "bfloat16 in the steps 21 to 25": otherwise(20, 25, field("train.precision", "bfloat16")),
}


def verify(lab: pathlib.Path, workdir: pathlib.Path, *options: str) -> tuple[int, list[str]]:
    """The exit code and the lines of the command."""
    command = [sys.executable, "-m", "tfdist", "verify", str(workdir), *options]
    done = subprocess.run(command, cwd=lab, env=environment(), capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines() + ([] if done.returncode < 2 else done.stderr.splitlines()[-3:])


def noticed_in(lines: list[str]) -> tuple[bool, set[int]]:
    """Whether lines show a difference that needs no interval; and the intervals, by their last step, that show one."""
    always, intervals = False, set()
    for each in lines:
        if found := re.match(r"(?:after|training,|evaluations,) step (\d+)", each):
            intervals.add(-(-int(found[1]) // EVERY) * EVERY)
        elif re.match(r"(data:|state of step|checkpoint of step|model\.keras)", each):
            always = True
    return always, intervals


def frequency(intervals: set[int], rounds: int = 1000) -> float:
    """How often two random intervals, chosen as the command does, include one of `intervals`."""
    every = [(last - EVERY, last) for last in range(EVERY, STEPS + 1, EVERY)]
    chosen = (random.Random(seed).sample(every, CHOSEN) for seed in range(rounds))
    return sum(any(last in intervals for _, last in one) for one in chosen) / rounds


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--honest", type=int, default=8, help="how often the honest runs are checked")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        honest = Run(folder / "lab", folder / "honest")
        make_lab(honest.lab)
        train(honest.lab, honest.workdir)
        refused = 0
        for seed in range(options.honest):
            code, lines = verify(honest.lab, honest.workdir, f"--seed={seed}", "--intervals=3")
            refused += code != 0
            print(*(lines if code else []), sep="\n", end="\n" if code else "")
        print(f"the honest run: refused {refused} of {options.honest} times")
        good, chosen = 0, [name for name in TAMPERINGS if options.only in name]
        print(f"{'tampering':52} noticed            with {CHOSEN} of {INTERVALS} intervals, stated")
        for name in chosen:
            run = Run(folder / "changed-lab", folder / "changed")
            for path, other in ((honest.lab, run.lab), (honest.workdir, run.workdir)):
                shutil.rmtree(other, ignore_errors=True)
                shutil.copytree(path, other)
            shutil.copy(run.lab / "digits.npz", run.lab / "honest.npz")
            TAMPERINGS[name](run)
            code, lines = verify(run.lab, run.workdir, f"--intervals={INTERVALS}", "--seed=0")
            always, intervals = noticed_in(lines)
            stated = 1.0 if always else CHOSEN / INTERVALS
            found = 1.0 if always else frequency(intervals)
            right = code == 1 and found >= stated - 0.05
            good += right
            where = "always" if always else f"{len(intervals)} of {INTERVALS} intervals"
            print(
                f"{name:52} {where:18} {found:4.0%} {stated:22.0%}  {'' if right else f'WRONG {code} {lines[:3]}'}",
                flush=True,
            )
        print(f"{good} of {len(chosen)} tamperings noticed with at least the stated probability")


if __name__ == "__main__":
    main()
