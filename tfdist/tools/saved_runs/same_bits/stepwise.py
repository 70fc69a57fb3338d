"""Trains a run again from a checkpoint, one step after another, as another process asks: the process that does so.

The run resumes in a scratch directory by the loop that trained it, so evaluations, callbacks, saves and rollbacks
happen where they did. Before and after each step it sends the hash of the state, and waits for a command.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import sys
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfdist.cluster.devices import onednn
from tfdist.config import config_dict, tensorflow_log
from tfdist.report import run_info

# The file in the scratch directory with what the process printed.
LOG = "log"
# Of Keras, MLflow and W&B, what only writes or sends: it changes no state, and its files and servers are the run's.
_ONLY_WRITE = re.compile(
    r"keras\..*(BackupAndRestore|CSVLogger|ModelCheckpoint|RemoteMonitor|TensorBoard|ProgbarLogger)$"
    r"|(mlflow|wandb)\."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Which steps one process trains again."""

    # The number of steps that are done when it begins.
    first: int
    # The config, as JSON values.
    config: Mapping[str, Any]
    # The directory of the checkpoint to resume; None: the newest one in `scratch`, or a new run.
    checkpoint: Path | None
    # A directory for its files.
    scratch: Path
    # Where the modules are that the config names.
    modules: tuple[str, ...] = ()
    # The working directory; None: as here.
    directory: str | None = None
    # Threads in an op; 0: TensorFlow's default.
    threads: int = 0
    # Whether with oneDNN; None: as this machine chooses.
    onednn: bool | None = None
    # Replicas, which are devices of the process.
    replicas: int = 1


def serve(connection: Connection, task: Task) -> None:
    """Trains `task`, and answers commands; the body of the process. See `replayed.Replayed` for what is sent."""
    log = os.open(task.scratch / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    try:
        _prepare(task)
        _train(connection, task)
    except BaseException as error:  # An exit, too: the other process says what happened.
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send(("failed", -1, f"{type(error).__name__}: {error}"))
    finally:
        sys.stdout.flush()
        os._exit(0)  # TensorFlow's teardown may take seconds.


def _prepare(task: Task) -> None:
    """Makes this process one in which the run's steps have their bits, before TensorFlow is imported."""
    os.environ.pop("TFDIST_NOTIFY", None)
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # Two of these processes may share a GPU.
    if task.threads:
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(task.threads)
    if task.onednn is not None:
        os.environ[onednn.VARIABLE] = str(int(task.onednn))
    sys.path[:0] = task.modules
    if task.directory is not None:
        os.chdir(task.directory)  # Paths in a config are relative to it.
    tensorflow_log.announce()
    onednn.choose(os.environ)
    if task.checkpoint is not None:
        target = task.scratch / "checkpoints" / task.checkpoint.name
        if not target.is_dir():
            shutil.copytree(task.checkpoint, target)


def _config(task: Task) -> Any:
    config = config_dict.from_saved(dict(task.config))
    config.callbacks = [one for one in config.callbacks if not _ONLY_WRITE.match(one["target"])]
    config.cluster = type(config.cluster)(logical_devices=task.replicas)
    config.report = type(config.report)(tensorboard=False, step_times=config.report.step_times)
    config.checkpoint.export = False
    config.train.shard_optimizer = False  # The bits are the same, and each process holds the whole state.
    return config


def _train(connection: Connection, task: Task) -> None:
    from tfdist.tools.saved_runs.same_bits import replay
    from tfdist.training import checkpointing, loop, setup
    from tfdist.training import run as run_lib
    from tfdist.training.consistency import hashing

    run = setup.build_run(_config(task), task.scratch)
    run = dataclasses.replace(run, log=run_lib.Log(console="nothing"))
    tools, state = checkpointing.open_run(run)
    try:
        facts = {f"data.{name}": one for name, one in replay.hash_data(run).items()}
        facts |= {f"code.{name}": one for name, one in run_info.code_hashes().items()}
        facts["function"] = hashing.HASH_NAMES[run.cluster.device_type]
        connection.send(("facts", state.step, facts))
        served = replay.Served(connection=connection, tools=tools, state=state, steps=tools.train_steps)
        tools.train_steps = served
        loop.train_loop(tools, state)
        served.pause("before")
        connection.send(("ended", state.step, ""))
    except replay.Ended:
        pass
    finally:
        checkpointing.close(tools)
