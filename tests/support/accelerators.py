"""The devices of the tests marked gpu: all GPUs, or the CPU if TFDIST_TESTS_GPU_ON=cpu, to develop the tests."""

import collections
import dataclasses
import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

import forked
import processes
import topologies
from launching import REPOSITORY

from tfdist.cluster.devices import host_gpus

# tests/conftest.py hides the GPUs from all other tests, and keeps the value that this variable had.
VISIBLE = "TFDIST_TESTS_CUDA_VISIBLE_DEVICES"
# The driver may compile the kernels of a new architecture for minutes.
SECONDS = 1800.0


@dataclasses.dataclass(frozen=True)
class Devices:
    """GPUs by their names in CUDA_VISIBLE_DEVICES; on the CPU, one name for each logical device."""

    kind: str
    names: tuple[str, ...]

    def train(
        self,
        workdir: pathlib.Path,
        *options: str,
        config: str,
        workers: int = 1,
        devices: int = 1,
        **variables: str,
    ) -> list[str]:
        """Trains on one process with `devices` devices, or on workers with one device each; returns the outputs."""
        command = self.command(workdir, *options, config=config, devices=devices)
        environments = self.environments(workers, devices, **variables)
        with self.started([command] * workers, environments) as running:
            outputs = [process.communicate(timeout=SECONDS)[0].decode() for process in running]
        codes = [process.returncode for process in running]
        assert codes == [0] * workers, "\n".join([f"exit codes {codes}", *outputs])
        return outputs

    def command(self, workdir: pathlib.Path, *options: str, config: str, devices: int = 1) -> list[str]:
        """The command line of a worker with `devices` devices."""
        name, other = ("gpus", "logical_devices=1") if self.kind == "GPU" else ("logical_devices", "gpus=0")
        fields = (f"--config.cluster.{name}={devices}", f"--config.cluster.{other}")
        return topologies.command(workdir, *fields, "--config.cluster.connect_seconds=600", *options, config=config)

    def environments(self, workers: int, devices: int = 1, **variables: str) -> list[dict[str, str]]:
        """The environments of two workers with one device each, or of one process with `devices` devices."""
        shares = [self.names[:devices]] if workers == 1 else [(name,) for name in self.names]
        if len(self.names) < workers:
            # Two workers of one host may not have the same GPU; by two names of the host they may, for tests.
            shares, variables = [self.names[:1]] * workers, variables | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        found = topologies.environments(workers, ("localhost", "127.0.0.1"), **variables)
        return [env | {"CUDA_VISIBLE_DEVICES": self._visible(share)} for env, share in zip(found, shares, strict=False)]

    def started(self, commands: list[list[str]], environments: list[dict[str, str]]):
        """Starts processes side by side, as `processes.started`; those on GPUs are not forked."""
        popen = subprocess.Popen if self.kind == "GPU" else forked.Popen
        return processes.started(commands, environments, popen=popen)

    def _visible(self, names: tuple[str, ...]) -> str:
        return ",".join(names) if self.kind == "GPU" else ""


@functools.cache
def find() -> tuple[Devices | None, str]:
    """Returns the devices, or None and the reason why there are none."""
    if os.environ.get("TFDIST_TESTS_GPU_ON") == "cpu":
        return Devices("CPU", ("0", "1")), ""
    env = visible_again(os.environ)
    names = host_gpus.assigned_gpus(env)
    if not names and not host_gpus.unused_by_tensorflow(env):
        return None, f"no GPU: {host_gpus.why_none(env)}"
    code = "from tfdist.cluster import strategy; print(len(strategy.plan().gpus))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        return None, f"no GPU: {done.stderr.strip().splitlines()[-1]}"
    count = int(done.stdout.split()[-1])
    if count == 0:
        return None, f"no GPU: TensorFlow lists none. {host_gpus.why_none(env)}"
    return Devices("GPU", (names or tuple(map(str, range(count))))[:count]), ""


def visible_again(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with the CUDA_VISIBLE_DEVICES that the tests were started with."""
    env = {name: value for name, value in environ.items() if name not in ("CUDA_VISIBLE_DEVICES", VISIBLE)}
    value = environ.get(VISIBLE, "all")
    return env if value == "all" else env | {"CUDA_VISIBLE_DEVICES": value}


def copies(space) -> collections.Counter[str]:
    """Counts the copies between host and GPUs in a profile, an XSpace: {"MemcpyD2H": count, "MemcpyH2D": count}.

    Those of TensorFlow's iterator, 8 bytes from the GPU for each batch, are "iterator".
    """
    found: collections.Counter[str] = collections.Counter()
    for plane in space.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if line.name.startswith("Stream"):  # Other lines repeat the same events.
                found.update(_copy(plane, event) for event in line.events)
    return collections.Counter(
        {name: count for name, count in found.items() if name in ("MemcpyD2H", "MemcpyH2D", "iterator")}
    )


def _copy(plane, event) -> str:
    """The name of an event of a GPU's stream."""
    name = plane.event_metadata[event.metadata_id].name
    names = plane.stat_metadata
    ops = [
        stat.str_value or names[stat.ref_value].name for stat in event.stats if names[stat.metadata_id].name == "tf_op"
    ]
    return "iterator" if name == "MemcpyD2H" and any(op.startswith("RemoteCall") for op in ops) else name
