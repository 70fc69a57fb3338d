"""A profile of some steps, read from TensorBoard's files of a real training."""

import pytest
import tensorflow as tf
from small_runs import train
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfdist import config as c
from tfdist.training import features

pytestmark = [pytest.mark.workers, pytest.mark.usefixtures("own_signals")]


@pytest.mark.slow
@pytest.mark.parametrize("tensorboard", [True, False])
def test_a_profile_is_there_and_a_resume_repeats_none(tmp_path, tensorboard):
    for steps in (4, 6):
        train(tmp_path, train=c.Train(steps=steps), report=c.Report(profile=[2, 3], tensorboard=tensorboard))
    (profile,) = (tmp_path / "tensorboard" / "train").glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(profile.read_bytes())
    names = {metadata.name for plane in space.planes for metadata in plane.event_metadata.values()}
    assert any("MatMul" in name for name in names)


@pytest.mark.slow
def test_a_profile_that_cannot_begin_costs_a_warning_alone(tmp_path, capfd):
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        train(tmp_path / "run", train=c.Train(steps=2), report=c.Report(profile=[1, 1]))
    finally:
        tf.profiler.experimental.stop(save=False)
    assert "config.report.profile=[1, 1]: no profile: " in capfd.readouterr().err


@pytest.mark.parametrize("profile", [[], [0, 3], [5, 4], [1, 2.0], [1]])
def test_a_profile_is_two_steps(profile):
    config = c.Config(model={"target": "x:y"}, train=c.Train(steps=1), report=c.Report(profile=profile))
    with pytest.raises(ValueError, match=r"report.profile must be \[first, last\]"):
        features.validate_config(config)
