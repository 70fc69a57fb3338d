"""Every field of type `Every`, with numbers of epochs alone, in a real run: what is written after which step."""

import pytest
import topologies
from small_runs import data, train

from tfdist import config as c


@pytest.mark.workers
@pytest.mark.usefixtures("own_signals")
def test_each_interval_is_due_after_the_epochs_that_it_lists(tmp_path):
    run = train(
        tmp_path,
        data=data(batch_size=479),
        train=c.Train(epochs=4),
        evaluation=c.Evaluation(every=c.Every(after=[2])),
        consistency=c.Consistency(every=c.Every(after=[2])),
        checkpoint=c.Checkpoint(every=c.Every(after=[1, 3]), keep=1, export=False),
        report=c.Report(every=c.Every(after=[1])),
    )
    assert run.steps_per_epoch == 3

    def steps(kind):
        return [record["step"] for record in topologies.records(tmp_path, kind)]

    # The last step is always among them.
    assert steps("train") == [3, 12]
    assert steps("evaluation") == [6, 12]
    # Replicas are also compared at the start, after the first step and before each checkpoint.
    assert steps("state") == [0, 1, 3, 6, 9, 12]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*")) == ["step-00000012"]
