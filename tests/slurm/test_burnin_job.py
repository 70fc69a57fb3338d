"""`srun python -m tfdist burnin` under a real Slurm of five nodes: one computes wrongly, one sends slowly."""

import shlex
import sys

import pytest
from launching import REPOSITORY, worker_environment
from slurm_cluster import slurm_cluster, slurm_missing

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(slurm_missing() is not None, reason=slurm_missing() or ""),
]
# How `tc` limits what a node sends.
SLOW = ("tbf", "rate", "100mbit", "burst", "1mb", "latency", "50ms")
NODES = ("n1", "n2", "n3", "n4", "n5")


def burn_in(slurm, folder, bad=""):
    """Runs the command on all nodes; on the node `bad` a bit is flipped."""
    # All nodes are one machine here, whose load the wall clock would see.
    words = ["burnin", f"--folder={folder}", "--rounds=6", "--minutes=10", "--clock=processor"]
    right = shlex.join([sys.executable, "-m", "tfdist", *words])
    wrong = shlex.join([sys.executable, "tests/support/burnin_node.py", *words[1:]])
    choose = f"if [ $SLURMD_NODENAME = '{bad}' ]; then exec {wrong}; else exec {right}; fi"
    srun = ["srun", f"-N{len(NODES)}", "--ntasks-per-node=1", "bash", "-c", choose]
    env = worker_environment(PYTHONPATH=str(REPOSITORY), CUDA_VISIBLE_DEVICES="")
    env = {name: env[name] for name in ("PYTHONPATH", "CUDA_VISIBLE_DEVICES")}
    return slurm.run(srun, env=env, cwd=REPOSITORY, timeout=900)


def test_a_wrong_node_and_a_slow_link_are_named(tmp_path):
    with slurm_cluster(tmp_path / "s", nodes=NODES) as slurm:
        clean = burn_in(slurm, tmp_path / "clean")
        assert clean.returncode == 0 and "--exclude" not in clean.stdout, clean.stdout + clean.stderr
        assert "5 devices, 0 nodes with a problem" in clean.stdout
        slurm._run_on("n4", ["tc", "qdisc", "add", "dev", "eth0", "root", *SLOW])
        done = burn_in(slurm, tmp_path / "faulty", bad="n2")
    assert done.returncode == 1 and "--exclude=n2,n4\n" in done.stdout, done.stdout + done.stderr
    assert "CPU of rank 1: 1 of 6 rounds gave other bits than most" in done.stdout
    assert "CPU of rank 3: sends at most 0.01" in done.stdout
