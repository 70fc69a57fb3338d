"""Compares hashes of trainings on 1, 2, 4 and 8 replicas with virtual replicas: `python -m tests.benchmark.same_bits`.

Each network is trained on the digits in small batches, or on the help texts of Python, on several topologies: 2x4 means
2 processes with 4 devices each. "kill" is killed by SIGKILL in the middle, on 2 devices, and resumed on 2x2. Hashes of
all variables are recorded every tenth of the steps; all must be those of the first topology.
`--only=PART` takes the networks of this name, or with this part in it.
`--keep=DIR` keeps the runs, and trains only those that are not there yet.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).parents[2]
TOPOLOGIES = ("1x1", "2x1", "1x4", "2x4", "kill")
SGD = "{'target': 'keras.optimizers:SGD', 'momentum': 0.9}"
ADAM = "{'target': 'keras.optimizers:Adam'}"
MUON = "{'target': 'tfdist.configs.networks.optimizers:muon'}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A network, and how it is trained."""

    name: str
    config: str
    optimizer: str
    rate: float
    # Fields of the config.
    fields: tuple[str, ...] = ()
    batch: int = 16


def digits(side: int, model: str) -> tuple[str, ...]:
    """Fields for a model on the digits, enlarged, with augmentation."""
    prepare = f"{{'target': 'tfdist.zoo.prepare:image', 'resize': ({side}, {side}), 'scale': 0.0625, 'flip': True}}"
    return (f"model={model}", "data.source={'target': 'tfdist.zoo.sources:digits'}", f"data.prepare={prepare}")


RESNET20 = "{'target': 'tfdist.zoo.models:cifar_resnet', 'num_classes': 10, 'input_shape': (16, 16, 1)}"
RESNET50 = (
    "{'target': 'tfdist.zoo.models:application', 'name': 'ResNet50V2', 'num_classes': 10, 'input_shape': (32, 32, 1)}"
)
MNIST = "{'target': 'tfdist.zoo.models:mnist_cnn', 'num_classes': 10}"
SMALL = ("model.group_size=2",)  # Images of a shard.
TEXT = ("callbacks=[]",)
CASES = (
    Case(name="digits", config="digits", optimizer=SGD, rate=0.05, fields=SMALL),
    Case(name="digits, Adam", config="digits", optimizer=ADAM, rate=0.002, fields=SMALL),
    Case(name="digits, Muon", config="digits", optimizer=MUON, rate=0.01, fields=SMALL),
    Case(name="MNIST network", config="mnist", optimizer=ADAM, rate=0.001, fields=digits(28, MNIST)),
    Case(name="ResNet-20", config="mnist", optimizer=SGD, rate=0.05, fields=digits(16, RESNET20)),
    Case(name="ResNet-20, Muon", config="mnist", optimizer=MUON, rate=0.01, fields=digits(16, RESNET20)),
    Case(name="transformer", config="char_gpt", optimizer="", rate=1e-3, fields=TEXT),
    Case(name="transformer, Muon", config="char_gpt", optimizer=MUON, rate=0.01, fields=TEXT),
    Case(name="ResNet50V2", config="mnist", optimizer=ADAM, rate=0.001, fields=digits(32, RESNET50)),
)


def command(case: Case, workdir: pathlib.Path, steps: int, devices: int) -> list[str]:
    """The command of a worker."""
    fields = (
        *case.fields,
        *((f"optimizer={case.optimizer}",) if case.optimizer else ()),
        *(f"learning_rate.peak={case.rate}", f"data.batch_size={case.batch}", "train.virtual_replicas=8"),
        *("train.epochs=none", f"train.steps={steps}", "data.evaluation_batch_size=40", "checkpoint.export=false"),
        *(f"report.every.steps={steps // 10}", "report.state_hash=reports", "report.tensorboard=false"),
        *(f"checkpoint.every.steps={steps // 5}", "checkpoint.every.epochs=none", "checkpoint.best_metric=none"),
        *("evaluation.every.epochs=none", f"evaluation.every.steps={steps}", "consistency.every.epochs=none"),
        *(f"cluster.logical_devices={devices}", "cluster.connect_seconds=600", "learning_rate.warmup_epochs=0.1"),
    )
    options = [f"--config.{field}" for field in fields]
    return [sys.executable, "-m", "tfdist.main", f"--config=configs/{case.config}.py", f"--workdir={workdir}", *options]


def start(line: list[str], workers: int, log: pathlib.Path) -> list[subprocess.Popen]:
    """Starts `workers` processes that are connected to each other."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(workers)]
    addresses = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}
    found = []
    for index in range(workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        own = env | ({"TF_CONFIG": json.dumps(task)} if workers > 1 else {})
        with open(f"{log}-{index}", "ab") as file:
            found.append(subprocess.Popen(line, cwd=REPOSITORY, env=own, stdout=file, stderr=file))
    return found


def wait(processes: list[subprocess.Popen], log: pathlib.Path) -> None:
    """Waits for processes, which must succeed."""
    codes = [one.wait() for one in processes]
    if any(codes):
        text = "\n".join(path.read_text()[-3000:] for path in sorted(log.parent.glob(f"{log.name}-*")))
        raise RuntimeError(f"exit codes {codes}\n{text}")


def records(workdir: pathlib.Path, kind: str) -> list[dict]:
    """The complete lines of metrics.jsonl of one kind."""
    path = workdir / "metrics.jsonl"
    text = path.read_text() if path.is_file() else ""
    return [line for line in map(json.loads, text.rpartition("\n")[0].splitlines()) if line["kind"] == kind]


def train(case: Case, workdir: pathlib.Path, topology: str, steps: int) -> None:
    """Trains on a topology, or kills a training and resumes it."""
    log = workdir.with_suffix(".log")
    if topology == "kill":
        processes = start(command(case, workdir, steps, 2), 1, log)
        while max([0, *(line["step"] for line in records(workdir, "train"))]) < steps // 2:
            if processes[0].poll() is not None:
                wait(processes, log)
                raise RuntimeError("the training ended before it was killed")
            time.sleep(0.05)
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        topology = "2x2"
    workers, devices = map(int, topology.split("x"))
    wait(start(command(case, workdir, steps, devices), workers, log), log)


def hashes(workdir: pathlib.Path) -> set[tuple[int, str]]:
    """(step, hash) of the records."""
    return {(line["step"], line["hash"]) for line in records(workdir, "state") if line["step"]}


def first_difference(ours: set[tuple[int, str]], theirs: set[tuple[int, str]]) -> int | None:
    """The first step in both with another hash."""
    common = {step for step, _ in ours} & {step for step, _ in theirs}
    return min((step for step, _ in ours ^ theirs if step in common), default=None)


def values(workdir: pathlib.Path) -> dict[tuple[str, int], list[float]]:
    """The last loss, training and evaluation."""
    found = {}
    for kind in ("train", "evaluation"):
        for line in records(workdir, kind):
            found[kind, line["step"]] = [line["loss"], line.get("accuracy")]
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--topologies", default=TOPOLOGIES, type=lambda text: text.split(","))
    parser.add_argument("--keep", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(options.keep or scratch)
        folder.mkdir(exist_ok=True)
        print("| network | optimizer | steps | replicas | hash | hashes, losses |\n" + "| --- " * 6 + "|", flush=True)
        exact = [one for one in CASES if options.only == one.name]
        for case in exact or [one for one in CASES if options.only in one.name]:
            first = None
            optimizer = re.search(r"\w+:(\w+)'", case.optimizer)[1] if case.optimizer else "AdamW"
            for topology in options.topologies:
                workdir = folder / f"{case.name.replace(', ', '-').replace(' ', '-')}-{options.steps}-{topology}"
                began = time.monotonic()
                if not (workdir / "finished.json").is_file():
                    train(case, workdir, topology, options.steps)
                found, first = hashes(workdir), first or workdir
                step = first_difference(hashes(first), found)
                said = "equal" if step is None else f"DIFFER from step {step} on"
                said += ", equal" if values(first) == values(workdir) else ", DIFFER"
                name = {"kill": "2 devices, killed; 2x2"}.get(topology, topology)
                last = dict(found)[options.steps]
                print(f"| {case.name.partition(',')[0]} | {optimizer} | {options.steps} | {name} | {last} | {said} |",
                      f"{time.monotonic() - began:.0f} s" if options.keep else "", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
