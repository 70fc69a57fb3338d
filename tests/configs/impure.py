"""A small run on the digits of whose functions the tests replace one by an impure one; see tests/support/impure.py."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tests.support.impure:model", "kind": "none"},
        objective={"target": "tests.support.impure:objective", "kind": "none", "evaluation": "none"},
        data=c.Data(
            source={"target": "tests.support.impure:Source", "kind": "none"},
            prepare={"target": "tests.support.impure:prepare", "kind": "none"},
            batch_size=480,
            evaluation_batch_size=360,
        ),
        optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9},
        learning_rate=c.LearningRate(peak=0.01),
        train=c.Train(epochs=2.0),
        evaluation=c.Evaluation(every=c.Every(epochs=1)),
        report=c.Report(tensorboard=False),
        cluster=c.ClusterOptions(connect_seconds=60.0),
    )
