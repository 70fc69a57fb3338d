"""Why a Slurm job is not requeued, in words."""

import time

import pytest

from tfdist.cluster import slurm_requeue
from tfdist.cluster.interruption import StopRequest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("reason", "seconds", "said"),
    [
        ("SIGUSR1", 60, True),
        ("SIGUSR1", 3600, False),
        ("SIGUSR1", None, False),
        (None, 60, False),
    ],
)
def test_a_job_that_was_too_short_for_a_checkpoint_says_so(monkeypatch, capsys, reason, seconds, said):
    monkeypatch.setattr(slurm_requeue, "_policy", None)  # Until the end of this test.
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    if seconds is not None:
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + seconds))
    slurm_requeue.enable_requeue(0, StopRequest(reason=reason), lambda: False)
    slurm_requeue.requeue()
    text = capsys.readouterr().err
    assert (
        "job not requeued: this attempt saved no new checkpoint after its first step, so a restart would not either"
        in text
    )
    assert ("the job ends in " in text and "Submit it with more --time" in text) == said
