"""CSCS Piz Daint course, laboratories 1 and 2: the line y = 2 x through 1000 noisy points, by gradient descent.

    python -m tfdist.main --config=configs/courses/cscs_line.py
    python -m tfdist trajectories --config=configs/courses/cscs_line.py --batches=1,100,1000
    python -m tfdist trajectories --config=configs/courses/cscs_line.py --stages

| in the laboratory | here |
|---|---|
| 1000 points, x uniform in [-0.5, 0.5), y = 2 x + noise, noise uniform in [-0.5, 0.5) | the same, with a fixed seed |
| slope and intercept start at N(0, 1), unseeded | they start at 0 and 1, or as `--config.model.m` and `.n` say |
| mean squared error, `GradientDescentOptimizer(0.5)` | the same |
| batch 1000, 100 steps | the same |
| laboratory 2: broadcast, average and shard on two workers | the third command; starts are N(0, 1) |
"""

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    return c.Config(
        model={"target": "tfdist.configs.networks.classic:line", "m": 0.0, "n": 1.0},
        data=c.Data(
            source={
                "target": "tfdist.configs.networks.classic:points",
                "m": 2.0,
                "n": 0.0,
                "noise": 0.5,
                "width": 0.5,
                "num_examples": 1000,
            },
            prepare={"target": "tfdist.zoo.prepare:identity"},
            evaluation_split=None,
            batch_size=1000,
        ),
        objective={"target": "tfdist.configs.networks.classic:line_error"},
        optimizer={"target": "keras.optimizers:SGD"},
        learning_rate=c.LearningRate(peak=0.5),
        train=c.Train(steps=100),
        checkpoint=c.Checkpoint(every=c.Every(), export=False),
        report=c.Report(every=c.Every(steps=1), tensorboard=False),
    )
