"""Why a Slurm job is not requeued, in words."""

import time

import pytest

from tfdist.cluster import slurm_requeue
from tfdist.cluster.interruption import StopRequest


@pytest.mark.parametrize(("seconds", "said"), [(60, True), (3600, False)])
def test_a_job_that_was_too_short_for_a_checkpoint_says_so(monkeypatch, capsys, seconds, said):
    monkeypatch.setattr(slurm_requeue, "_policy", None)  # Until the end of this test.
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + seconds))
    slurm_requeue.enable_requeue(0, StopRequest(reason="SIGUSR1"), lambda: False)
    slurm_requeue.requeue()
    text = capsys.readouterr().err
    assert "job not requeued" in text and ("the job ends in " in text) == said
