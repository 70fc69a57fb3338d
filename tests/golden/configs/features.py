"""A convolution and dropout on few digits: the command line adds the one feature of a golden run.

150 examples in batches of 24 are 6 steps of an epoch, which leaves 6 examples out; the last batch of an evaluation has
19 of 24.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tests.golden.parts:blocks"},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:digits"},
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16, "pad": 1},
            train_split="train[:150]",
            evaluation_split="test[:91]",
            batch_size=24,
        ),
        # An epsilon that keeps differences of rounding small: Adam makes whole steps of gradients near zero.
        optimizer={"target": "keras.optimizers:Adam", "epsilon": 1e-2},
        learning_rate=c.LearningRate(peak=0.02, schedule={"target": "tfdist.zoo.schedules:settable"}),
        train=c.Train(epochs=2, call_seconds=1e-6),
        checkpoint=c.Checkpoint(every=c.Every(steps=5), keep=1, export=False),
        callbacks=[{"target": "tests.golden.parts:Stop"}],
        report=c.Report(every=c.Every(steps=1), tensorboard=False),
        cluster=c.ClusterOptions(connect_seconds=240.0),
    )
