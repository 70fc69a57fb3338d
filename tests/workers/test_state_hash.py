"""The hashes of the state in metrics.jsonl: those of a resumed run, and of other replicas, continue one list."""

import pytest
import topologies

from tfdist.tools.many_runs import compare

OPTIONS = [
    "--config.model={'target': 'tests.support.lab:linear', 'num_classes': 10}",
    *("--config.train.steps=12", "--config.checkpoint.every.steps=4", "--config.report.every.steps=2"),
    *("--config.evaluation.every.steps=none", "--config.checkpoint.export=false"),
]


def hashes(workdir):
    """(step, hash) of the records; those of a step that is recorded twice are equal."""
    return {(line["step"], line["hash"]) for line in topologies.records(workdir, "state")}


@pytest.mark.slow
def test_a_resumed_run_continues_the_list_of_hashes(tmp_path):
    whole, resumed, changed = (tmp_path / name for name in ("whole", "resumed", "changed"))
    topologies.train(whole, *OPTIONS, "--config.report.state_hash=reports")
    changes = ["--config.learning_rate.peak=0.07", "--allow_config_changes"]
    for workdir, options in ((resumed, []), (changed, changes)):
        topologies.cut_back(whole, workdir, newest=8)
        topologies.train(workdir, *OPTIONS, "--config.report.state_hash=reports", *options)
    expected = hashes(whole)
    assert [step for step, _ in sorted(expected)] == [0, 1, 2, 4, 6, 8, 10, 12]
    assert len({value for _, value in expected}) == 8
    # After its first execution, of one step, a start compares the replicas as well.
    assert {one for one in hashes(resumed) if one[0] != 9} == expected
    records = topologies.records(resumed, "state")
    examples = [line["examples"] for line in records]
    assert examples[0] == [0, 0] and examples[-1] == [480, 576]
    assert [examples[i][0] for i in range(1, len(examples))] == [one[1] for one in examples[:-1]]
    (data,) = topologies.records(whole, "data")
    assert "'image' of the train split" in data["hashes"]
    (environment,) = topologies.records(whole, "environment")
    assert {"processor", "threads", "code", "config", "git"} <= environment.keys()
    assert "equal until step 12, the last of 8 " in compare.first_difference([whole, resumed])
    assert "equal until step 8, different at step 10." in compare.first_difference([whole, changed])
    assert "equal until step 8, different at step 9." in compare.first_difference([changed, resumed])


def test_without_hashes_a_single_replica_computes_none(tmp_path):
    topologies.train(tmp_path, *OPTIONS, "--config.report.state_hash=none")
    assert topologies.records(tmp_path, "state") == []
