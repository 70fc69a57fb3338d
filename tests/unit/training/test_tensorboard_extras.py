"""What TensorBoard shows besides scalars, read from the files of a real training."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import topologies
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfdist import config as c
from tfdist.config import validate
from tfdist.report import reporter as reporter_lib
from tfdist.report.tensorboard_events import EventRecords
from tfdist.training import loop, setup
from tfdist.training.reporting import tensorboard_extras

LOGITS = [f"model/logits/{name}" for name in ("bias", "kernel")]


pytestmark = [pytest.mark.workers, pytest.mark.usefixtures("own_signals")]


def run(workdir, steps, **wanted):
    """Trains the digits with one dense layer."""
    keras.utils.clear_session()
    options = c.Config(
        model={"target": "lab:linear", "num_classes": 10},
        data=c.Data(prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16}, batch_size=32),
        learning_rate=c.LearningRate(peak=0.01),
        train=c.Train(steps=steps),
        report=c.Report(**wanted),
    )
    assert loop.train(setup.build_run(options, workdir), allow_config_changes=True) == 0


@pytest.mark.slow
def test_the_graph_histograms_and_a_profile_are_there_and_a_resume_repeats_none(tmp_path):
    wanted = dict(graph=True, histograms=c.Every(steps=2), profile=[2, 3])
    run(tmp_path, 4, **wanted)
    run(tmp_path, 6, **wanted)
    board = EventAccumulator(str(tmp_path / "tensorboard" / "train"), size_guidance={"histograms": 0}).Reload()
    nodes = {node.name: node for node in board.Graph().node}
    assert {name for name, node in nodes.items() if node.op == "Placeholder" and "/" not in name} == {"image", "label"}
    # Keras enters the scope of a model twice.
    scopes = {node.op: name.split("/")[0].removesuffix("_1") for name, node in nodes.items()}
    assert {*scopes.values()} <= {"image", "label", "linear", "objective"}
    assert (scopes["MatMul"], scopes["SparseSoftmaxCrossEntropyWithLogits"]) == ("linear", "objective")
    sources = [source.lstrip("^").partition(":")[0] for node in nodes.values() for source in node.input]
    assert sources and {*sources} <= {*nodes}
    first, changed = board.Tensors("config")
    assert (first.step, changed.step) == (0, 4)
    assert "| `train.steps` | `4` |" in first.tensor_proto.string_val[0].decode().splitlines()
    assert sorted(board.Tags()["histograms"]) == LOGITS
    for tag in LOGITS:
        seen = board.Histograms(tag)
        assert [event.step for event in seen] == [0, 2, 4, 6]
        values = topologies.arrays(tmp_path, 6)[tag]
        last = seen[-1].histogram_value
        assert last.num == values.size == sum(last.bucket)
        np.testing.assert_allclose([last.min, last.max], [values.min(), values.max()])
        counts, edges = np.histogram(values.astype(np.float64), bins=30)
        assert last.bucket[1:] == counts.tolist()
        np.testing.assert_allclose(last.bucket_limit, edges)
    (profile,) = (tmp_path / "tensorboard" / "train").glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(profile.read_bytes())
    names = {metadata.name for plane in space.planes for metadata in plane.event_metadata.values()}
    assert any("MatMul" in name for name in names)


@pytest.mark.slow
def test_a_profile_that_cannot_begin_costs_a_warning_alone(tmp_path, capfd):
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        run(tmp_path / "run", 2, profile=[1, 1])
    finally:
        tf.profiler.experimental.stop(save=False)
    assert "The steps from 1 to 1 cannot be profiled: " in capfd.readouterr().err


def test_values_that_are_not_finite_are_left_out(tmp_path):
    reporter = reporter_lib.open_report(
        tmp_path, chief=True, rank=0, num_replicas=1, total_steps=9, steps_per_epoch=3, event_format=EventRecords
    )
    arrays = {"bad": np.array([np.nan]), "some": np.array([1.0, np.inf, 3.0])}
    reporter.training_events(tensorboard_extras.histograms_record(3, arrays))
    reporter.close()
    board = EventAccumulator(str(tmp_path / "tensorboard" / "train")).Reload()
    assert board.Tags()["histograms"] == ["some"]
    assert board.Histograms("some")[0].histogram_value.num == 2


@pytest.mark.parametrize("profile", [[], [0, 3], [5, 4], [1, 2.0], [1]])
def test_a_profile_is_two_steps(profile):
    config = c.Config(model={"target": "x:y"}, train=c.Train(steps=1), report=c.Report(profile=profile))
    with pytest.raises(
        ValueError, match=r"report.profile must be \[first, last\], two steps counted from 1. Received: "
    ):
        validate.validate(config)


def test_pictures_without_tensorboard_are_reported_once(tmp_path, capsys):
    options = c.Config(model={"target": "lab:linear"}, report=c.Report(tensorboard=False, profile=[1, 2]))
    run = types.SimpleNamespace(config=options, cluster=types.SimpleNamespace(is_chief=True), workdir=tmp_path)
    report = reporter_lib.Reporter(rank=0, num_replicas=1, steps_per_epoch=1, console=None)
    extras = tensorboard_extras.TensorBoardExtras(run=run, report=report)
    for step in range(2):
        extras.write_due(step)
    assert capsys.readouterr().err.count("profile are for TensorBoard, and have no effect with config.report.te") == 1
    assert not extras.profiling
