"""The same run under mpirun, as TF_CONFIG processes, and alone."""

import shutil
import sys

import numpy as np
import pytest
from launching import run_all, train_command, worker_environment
from slurm_cluster import slurm_cluster
from topologies import arrays, assert_same_bits, environments, largest_difference

pytestmark = pytest.mark.slow
MPI = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="no mpirun on this machine (Debian: apt-get install openmpi-bin)"
)
# mpirun refuses root, and more ranks than processors, unless told that this is meant; and it binds ranks to single
# processors: then TensorFlow's threads share out sums in another way than elsewhere.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The arrays of the run of two workers that TF_CONFIG names."""
    workdir = tmp_path_factory.mktemp("tf_config")
    run_all([train_command(workdir)] * 2, environments(2))
    return arrays(workdir)


def test_two_processes_of_tf_config_are_the_run_of_one(two_processes, alone):
    assert largest_difference(two_processes, alone) < 1e-5


@MPI
def test_two_ranks_of_mpirun_are_two_processes_of_tf_config(two_processes, tmp_path):
    run_all([[*MPIRUN, "-n", "2", *train_command(tmp_path)]], [worker_environment()])
    assert_same_bits(arrays(tmp_path), two_processes)


@MPI
def test_mpirun_over_two_hosts(alone, tmp_path):
    """In a Slurm allocation, mpirun starts its ranks on the hosts of that, and tells none which rank is where."""
    with slurm_cluster(tmp_path / "slurm") as slurm:
        launch = ["salloc", "-N2", "--ntasks-per-node=1", *MPIRUN, "-n", "2"]
        slurm.output([*launch, *train_command(tmp_path / "run")], timeout=300)
    assert largest_difference(arrays(tmp_path / "run"), alone) < 1e-5


@MPI
def test_an_unchanged_script_under_mpirun_and_srun(tmp_path):
    def line(name: str) -> list[str]:
        script = ["tests/scripts/unchanged.py", f"--out={tmp_path / name}"]
        return [sys.executable, "-m", "tfdist.run", f"--workdir={tmp_path / f'workdir-{name}'}", *script]

    (printed,) = run_all([[*MPIRUN, "-n", "2", *line("mpirun")]], [worker_environment()])
    with slurm_cluster(tmp_path / "slurm") as slurm:
        launch = ["srun", "-N2", "--ntasks-per-node=1", *line("srun")]
        # Both nodes are this machine: files in a temporary directory would be written by both.
        (temporary := tmp_path / "temporary").mkdir()
        by_slurm = slurm.output(launch, env={"TMPDIR": str(temporary)}, timeout=300)
    assert printed.count("steps 12") == by_slurm.count("steps 12") == 1
    with np.load(tmp_path / "mpirun/weights.npz") as one, np.load(tmp_path / "srun/weights.npz") as other:
        assert_same_bits(dict(one), dict(other))
