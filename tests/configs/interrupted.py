"""A network with dropout under Adam, in steps that last long enough to be interrupted; nothing divides anything."""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tests.support.lab:Dropouts", "num_classes": 10, "rate": 0.3},
        data=c.Data(
            prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16, "pad": 1},
            batch_size=48,
            evaluation_batch_size=60,
        ),
        objective={"target": "tests.support.lab:slow_classification", "seconds": 0.02},
        optimizer={"target": "keras.optimizers:Adam"},
        learning_rate=c.LearningRate(peak=2e-3, schedule={"target": "tfdist.zoo.schedules:cosine"}, warmup_epochs=1),
        train=c.Train(steps=96, call_seconds=0.1),
        evaluation=c.Evaluation(every=c.Every(steps=13)),
        checkpoint=c.Checkpoint(every=c.Every(steps=8), keep=2, best_metric="accuracy", export=False),
        report=c.Report(every=c.Every(steps=5), tensorboard=False),
    )
