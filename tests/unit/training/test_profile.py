"""A profile of some steps, read from TensorBoard's files of a real training."""

import pytest
import tensorflow as tf
from small_runs import train
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tfdist import config as c

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_signals")]


@pytest.mark.parametrize("tensorboard", [True, False])
def test_a_profile_is_there_and_a_resume_repeats_none(tmp_path, tensorboard):
    for steps in (4, 6):
        train(tmp_path, train=c.Train(steps=steps), report=c.Report(profile=[2, 3], tensorboard=tensorboard))
    (profile,) = (tmp_path / "tensorboard" / "train").glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(profile.read_bytes())
    names = {metadata.name for plane in space.planes for metadata in plane.event_metadata.values()}
    assert any("MatMul" in name for name in names)


def test_a_profile_that_cannot_begin_costs_a_warning_alone(tmp_path, capfd):
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        train(tmp_path / "run", train=c.Train(steps=2), report=c.Report(profile=[1, 1]))
    finally:
        tf.profiler.experimental.stop(save=False)
    assert "config.report.profile=[1, 1]: no profile: " in capfd.readouterr().err
