"""Trains asynchronously with parameter servers: workers update the weights without waiting for each other.

    python -m tfdist asynchronous --config=configs/digits.py --workers=2 --servers=1

starts workers and parameter servers on this machine; this process is their chief. If TF_CONFIG is set, nothing is
started: start this command once for each task of its cluster (one chief, workers, ps). The chief reads and prepares
the batches, distributes them to the workers, evaluates, saves and reports. The order of the updates depends on timing:
two runs differ. If a task is lost, the run exits with code 76; the same command resumes from the newest checkpoint.
"""

import argparse
import contextlib
import json
import operator
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence

from tfdist.cluster import process_exit
from tfdist.cluster.devices import host_gpus
from tfdist.cluster.discovery import worker_spec
from tfdist.config import schema, tool_flags
from tfdist.launch import local_workers, processes

# Fields that cannot be set for training with parameter servers.
_UNSUPPORTED = (
    *("train.micro_batches", "train.nonfinite", "train.recompute", "train.virtual_replicas"),
    *("communication.dtype", "communication.sparse_as_dense", "callbacks"),
)


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags."""
    parser.add_config()
    parser.add_workdir("runs/NAME", "Directory of the run.")
    meaning = "Workers to start on this machine; ignored with TF_CONFIG. Default: %(default)s."
    parser.add_argument("--workers", metavar="N", type=tool_flags.at_least(1), default=2, help=meaning)
    meaning = "Parameter servers to start; ignored with TF_CONFIG. Default: %(default)s."
    parser.add_argument("--servers", metavar="N", type=tool_flags.at_least(1), default=1, help=meaning)
    meaning = "Resume the run in the workdir even if the config differs from the saved one."
    parser.add_argument("--allow_config_changes", action="store_true", help=meaning)


def check(config: schema.Config) -> None:
    """Raises ValueError if the config sets a field that training with parameter servers does not support."""
    for name in _UNSUPPORTED:
        value, default = map(operator.attrgetter(name), (config, schema.Config(model={})))
        if value != default:
            raise ValueError(f"config.{name}={value!r} cannot be used with parameter servers: set it to {default!r}.")
    if config.train.precision == "float16":
        raise ValueError('config.train.precision="float16" needs a loss scale, which parameter servers do not have.')


def run_or_start_tasks(args: argparse.Namespace) -> int:
    """Runs the task of TF_CONFIG, or starts all tasks on this machine and is their chief; returns the exit code.

    Raises:
        ValueError: TF_CONFIG lists no parameter servers; another launcher started several processes without TF_CONFIG;
            or the config cannot be used.
    """
    from tfdist.configs.laboratory.parameter_server import coordinator, tasks

    config, workdir = args.config, args.workdir

    def train(check: Callable[[], None] = lambda: None) -> int:
        mine = tasks.task_spec(os.environ)
        if mine.kind != "chief":
            tasks.serve(mine)
        seconds = worker_spec.connect_seconds(config.cluster.connect_seconds, len(mine.remote()))
        strategy, workers = tasks.connect(mine, seconds, check)
        allow = args.allow_config_changes
        return coordinator.train(config, workdir, mine, strategy, workers, allow_config_changes=allow)

    if tasks.are_listed(os.environ):
        return train()
    try:
        local_workers.check_single_process(os.environ)
    except ValueError as error:
        raise ValueError(
            f"give each task a TF_CONFIG with chief, worker and ps (docs/consistency.md): {error}"
        ) from None
    command = [sys.executable, "-m", "tfdist", "asynchronous", *args.config_words, f"--workdir={workdir}"]
    with start_tasks(command, os.environ, workers=args.workers, servers=args.servers) as check:
        return train(check)


def main(args: argparse.Namespace) -> None:
    """Runs the command, and exits the process."""
    check(args.config)
    process_exit.run_and_exit(lambda: run_or_start_tasks(args))


@contextlib.contextmanager
def start_tasks(
    command: Sequence[str], env: MutableMapping[str, str], *, workers: int, servers: int
) -> Iterator[Callable]:
    """Starts workers, which divide this machine's GPUs, and parameter servers; kills them at the end of the block.

    Yields a function that raises a ChildProcessError if one of them has exited.

    Args:
        command: of each process; its task is in TF_CONFIG.
        env: the environment of this process, which becomes the chief: gets its TF_CONFIG and no GPUs.
        workers: number of workers.
        servers: number of parameter servers.

    Raises:
        ValueError: there are fewer GPUs than workers.
    """
    reserved = local_workers.reserve_ports(1 + workers + servers)
    addresses = [f"localhost:{each.getsockname()[1]}" for each in reserved]
    cluster = {"chief": addresses[:1], "worker": addresses[1 : 1 + workers], "ps": addresses[1 + workers :]}
    gpus = local_workers.divide_gpus(host_gpus.assigned_gpus(env), workers)

    def task(kind: str, index: int) -> dict[str, str]:
        config = {"cluster": cluster, "task": {"type": kind, "index": index}}
        visible = ",".join(gpus[index]) if kind == "worker" else ""
        return {"TF_CONFIG": json.dumps(config), "CUDA_VISIBLE_DEVICES": visible}

    for each in reserved:
        each.close()
    children: dict[str, subprocess.Popen] = {}

    def check() -> None:
        for name, child in children.items():
            if child.poll() is not None:
                raise ChildProcessError(f"{name} exited with code {child.returncode} while it was starting.")

    try:
        for kind, index in [*(("worker", i) for i in range(workers)), *(("ps", i) for i in range(servers))]:
            name = f"{kind} {index}"
            children[name] = subprocess.Popen(
                command,
                env=dict(env) | task(kind, index),
                stdin=subprocess.DEVNULL,
                preexec_fn=processes.die_with_parent(os.getpid(), signal.SIGKILL),
            )
            print(f"{name}: pid {children[name].pid}", flush=True)
        env.update(task("chief", 0))
        yield check
    finally:
        for child in children.values():
            child.kill()
        for child in children.values():
            child.wait()
