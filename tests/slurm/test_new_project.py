"""The batch file that `tfdist new` writes, submitted as it is to a real Slurm."""

import json

import forked
import pytest
from launching import tfdist, worker_environment

ROWS = "".join(f"{number},{number % 3 + 0.1 * (number % 5)},{'abc'[number % 3]}\n" for number in range(200))


@pytest.mark.slow
def test_a_new_project_is_trained_by_its_batch_file(slurm, tmp_path):
    (tmp_path / "t.csv").write_text(f"id,size,kind\n{ROWS}")
    assert "job.sbatch" in tfdist("new", "kinds", "--table=t.csv", start=forked.run, cwd=tmp_path).stdout
    project = tmp_path / "kinds"
    sbatch = ["sbatch", "--wait", "--cpus-per-task=1", "job.sbatch"]
    done = slurm.run(sbatch, cwd=project, env=worker_environment(), timeout=600)
    log = "".join(path.read_text() for path in project.glob("*.log"))
    assert done.returncode == 0, done.stderr + log
    assert "finished after step" in log
    assert json.loads((project / "runs" / "kinds" / "finished.json").read_text())["step"] > 0
