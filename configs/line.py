"""The line y = m x + n, fitted to 64 points by gradient descent; each report shows (m, n) before a step.

    python -m tfdist.main --config=configs/line.py
    python -m tfdist trajectories --config=configs/line.py --batches=1,8,64 --replicas=1,2

The second command draws the trajectories over the loss surface, for each batch size on one replica and on two.
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.configs.networks.classic:line", "m": -1.0, "n": 2.0},
        data=c.Data(
            source={
                "target": "tfdist.configs.networks.classic:points",
                "m": 2.0,
                "n": 0.5,
                "noise": 0.3,
                "num_examples": 64,
            },
            prepare={"target": "tfdist.zoo.prepare:identity"},
            evaluation_split=None,
            batch_size=8,
        ),
        objective={"target": "tfdist.configs.networks.classic:line_error"},
        optimizer={"target": "keras.optimizers:SGD"},
        learning_rate=c.LearningRate(peak=0.1),
        train=c.Train(steps=60),
        checkpoint=c.Checkpoint(every=c.Every(), export=False),
        report=c.Report(every=c.Every(steps=1), tensorboard=False),
    )
