"""Finds nodes that compute wrongly or slowly, before a long job: `srun -N64 python -m tfdist burnin --minutes=5`.

Start a task for each GPU, or one for each node; any launcher will do. Each device makes the same short training again
and again. Its weights must have the bits that most devices of its kind have. The rates of arithmetic, of memory, of the
copies to a GPU, and of the network from the next tasks are compared with the median. Rank 0 prints one line for each
node, those with problems first, and an option --exclude for Slurm.

    srun -N2 --ntasks-per-node=4 --gpus-per-node=4 python -m tfdist burnin --minutes=2
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.cluster.devices import onednn
from tfdist.cluster.discovery import environment
from tfdist.cluster.discovery import gpus as gpus_lib
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.config import tensorflow_log
from tfdist.tools import tables
from tfdist.tools.doctor.burnin import exchange, judgement
from tfdist.tools.doctor.burnin.judgement import Device

# Seconds in which all tasks must have started, and after the end have written their last round.
_START_SECONDS, _END_SECONDS = 300.0, 60.0
# A task reads from this many other tasks, one per round.
_PARTNERS = 5
_PORTS = {"port_base": 10000, "port_count": 10000}
_CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_float("minutes", 5.0, "Minutes of rounds, after all tasks have started.", lower_bound=0.0)
    flags.DEFINE_integer("rounds", None, "End after this number of rounds.", lower_bound=1)
    flags.DEFINE_integer(
        "at_once", None, "Tasks of a host that make a round at the same time. Default: all.", lower_bound=1
    )
    flags.DEFINE_float("slow", 0.7, "A rate below this fraction of the median is too slow.", 0.0, 1.0)
    flags.DEFINE_float("slow_link", 0.25, "The same for the network, which other programs use, too.", 0.0, 1.0)
    flags.DEFINE_string("folder", None, "A folder that all nodes see, for the results. Default: burnin-JOB here.")
    flags.DEFINE_enum(
        "clock", "wall", list(_CLOCKS), "What rates are measured by; processor: on CPUs that other programs use, too."
    )


def main(argv: list[str]) -> int:
    """Runs the command; returns 1 on rank 0 if a node has a problem."""
    spec = environment.resolve(os.environ, **_PORTS)
    os.environ["TF_DETERMINISTIC_OPS"] = "1"
    tensorflow_log.announce()
    onednn.choose(os.environ)
    folder = exchange.Folder(Path(flags.FLAGS.folder or f"burnin-{spec.job}"), spec.rank)
    return run_rounds(spec, folder, lambda: _probes(spec))


def _probes(spec: WorkerSpec) -> list[tuple[str, str, Any]]:
    """Returns (name, kind, probe) of each device of this task."""
    import tensorflow as tf

    from tfdist.tools.doctor.burnin import device

    clock, gpus = _CLOCKS[flags.FLAGS.clock], tf.config.list_physical_devices("GPU")
    if not gpus:
        kind = onednn.read_processor().name or "CPU"
        return [("CPU", kind, device.Probe("CPU:0", clock))]
    visible = gpus_lib.visible_gpus(spec, len(gpus))
    tf.config.set_visible_devices([gpus[index] for index in visible], "GPU")
    kinds = [tf.config.experimental.get_device_details(gpus[index]).get("device_name", "GPU") for index in visible]
    places = enumerate(zip(visible, kinds, strict=True))
    return [(f"GPU {index}", kind, device.Probe(f"GPU:{place}")) for place, (index, kind) in places]


def run_rounds(
    spec: WorkerSpec,
    folder: exchange.Folder,
    make_probes: Callable[[], list[tuple[str, str, Any]]],
    node: str | None = None,
    block_seconds: float = 0.0,
) -> int:
    """Makes the rounds of this task; on rank 0 also waits for the others and prints the table.

    Args:
        make_probes: returns (name, kind, probe) of each device of this task; see `device.Probe`.
        node: the name of this node; None: that of the host.
        block_seconds: as of `exchange.serve_link`.

    Returns:
        The exit code: 1 on rank 0 if a node has a problem, otherwise 0.
    """
    host, port = socket.gethostname(), exchange.serve_link(block_seconds)
    with exchange.turn(spec.rank, flags.FLAGS.at_once):
        probes = make_probes()
    node = host.partition(".")[0] if node is None else node  # As Slurm has it.
    devices = [(name, kind) for name, kind, _ in probes]
    about = {"node": node, "host": host, "port": port, "devices": devices}
    started = folder.meet(about, spec.num_workers, time.monotonic() + _START_SECONDS)
    end, count, others = time.monotonic() + 60.0 * flags.FLAGS.minutes, 0, min(spec.num_workers - 1, _PARTNERS)
    while time.monotonic() < end and (flags.FLAGS.rounds is None or count < flags.FLAGS.rounds):
        with exchange.turn(spec.rank, flags.FLAGS.at_once):
            rounds = [probe.round() for _, _, probe in probes]
            partner = (spec.rank + 1 + count % others) % spec.num_workers if others else spec.rank
            if partner != spec.rank and (about := started[partner]) is not None:
                rounds[0] |= {"link": exchange.link_rate(about["host"], about["port"]), "from": partner}
        folder.write({"rounds": rounds})
        count += 1
    folder.write({"end": True})
    end = time.monotonic() + _END_SECONDS
    for rank in range(spec.num_workers) if spec.rank else ():  # The link must answer until the others have ended.
        folder.wait_for(rank, _has_ended, end)
    if spec.rank:
        return 0
    return _judge(spec, folder)


def _has_ended(records: list[dict[str, Any]]) -> bool:
    return bool(records) and "end" in records[-1]


def _judge(spec: WorkerSpec, folder: exchange.Folder) -> int:
    """Waits for all tasks, and prints what was found; returns the exit code."""
    end, devices, missing = time.monotonic() + _END_SECONDS, [], []
    for rank in range(spec.num_workers):
        records = folder.wait_for(rank, _has_ended, end)
        devices += _devices(rank, records)
        if not _has_ended(records):
            place = records[0]["node"] if records else spec.addresses[rank] if spec.addresses else "a node"
            missing.append(f"rank {rank} on {place} {'has stopped' if records else 'has not started'}")
    found = judgement.problems(devices, flags.FLAGS.slow, flags.FLAGS.slow_link)
    print(tables.text(judgement.HEADER, judgement.table(devices, found)))
    for line in missing:
        print(line)
    if found:
        print(f"--exclude={','.join(sorted(found))}")
    print(f"{len(devices)} devices, {len(found)} nodes with a problem")
    return 1 if found or missing else 0


def _devices(rank: int, records: list[dict[str, Any]]) -> Iterator[Device]:
    if not records:
        return
    rounds = [one["rounds"] for one in records if "rounds" in one]
    for place, (name, kind) in enumerate(records[0]["devices"]):
        of_device = [one[place] for one in rounds]
        yield Device(rank=rank, node=records[0]["node"], name=name, kind=kind, rounds=of_device)
