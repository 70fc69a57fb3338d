"""`tfdist course` under a real Slurm: the command of a laptop, over the tasks of an allocation and as a batch job."""

import re
import sys

import numpy as np
import pytest
from slurm_cluster import slurm_cluster

pytestmark = pytest.mark.slow

COURSE = [sys.executable, "-m", "tfdist", "course"]


@pytest.fixture(scope="module")
def cte_power(tmp_path_factory):
    """Two nodes with the threads and GPUs of CTE-POWER's, which TensorFlow does not see."""
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=("n9", "n10"), cpus=160, gpus=4) as cluster:
        yield cluster


def test_the_ring_goes_from_node_to_node(cte_power, tmp_path):
    words = ["salloc", "-N2", "--ntasks-per-node=1", *COURSE, "piz_daint", "ring", f"--workdir={tmp_path}"]
    printed = cte_power.output(words, timeout=400)
    assert "$ srun python -m tfdist all_reduce --ring" in printed
    assert "worker 1 of 2: host n10" in printed
    assert float(re.search(r"the sums differ by at most (\S+) of", printed)[1]) < 1e-6
    assert re.search(r"^messages of a replica +2\(N-1\) +2$", printed, re.MULTILINE)


def test_the_batch_job_of_task_3_has_all_answers(cte_power, tmp_path):
    generator = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 1000), ("test", 200)):
        arrays[f"x_{split}"] = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"y_{split}"] = generator.integers(0, 10, count, dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", **arrays)
    (tmp_path / "site.sh").write_text(f'export PATH="{sys.exec_prefix}/bin:$PATH"\n')
    words = [*COURSE, "cte_power", "3", f"--data={tmp_path}/mnist.npz", f"--workdir={tmp_path}/runs"]
    printed = cte_power.output(words, env={"TFDIST_SITE": str(tmp_path / "site.sh")}, timeout=400)
    assert "Submitted batch job" in printed and "finished after step 50" in printed
    assert re.search(r"^parameters +62,346 +62,346$", printed, re.MULTILINE)
    assert re.search(r"^accuracy on test +0.9671 +0.\d+$", printed, re.MULTILINE)


def test_the_loop_of_idris_and_tfdist_main_train_on_both_nodes(tmp_path):
    (tmp_path / "slurm").mkdir()
    # TensorFlow's own resolver, as on the page, sorts the names of the nodes: with n9 and n10 the loop waits for ever.
    with slurm_cluster(tmp_path / "slurm", nodes=("n1", "n2"), cpus=4) as cluster:
        words = ["salloc", "-N2", "--ntasks-per-node=1", *COURSE, "jean_zay", "2", f"--workdir={tmp_path}"]
        printed = cluster.output(words, timeout=600)
    assert "$ srun python docs/courses/jean_zay_loop.py --replicas=2 " in printed
    # A line for each epoch, of the first worker only.
    assert len(re.findall(r"^replicas 2 epoch \d", printed, re.MULTILINE)) == 2
    assert "worker 1 of 2: host n2" in printed and " --config.data.batch_size=32 " in printed
    assert len(re.findall(r"(?:loop|main): .* not printed +[\d.]+$", printed, re.MULTILINE)) == 4
