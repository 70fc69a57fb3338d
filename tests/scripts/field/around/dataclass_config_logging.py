"""Trains a small regressor; settings are a dataclass, everything is logged to a file."""

import argparse
import dataclasses
import json
import logging
import pathlib
import sys

import keras
import numpy as np
from recording import record


@dataclasses.dataclass
class Config:
    units: int = 8
    epochs: int = 3
    rate: float = 0.05
    out: str = "runs/base"


def parse_args():
    parser = argparse.ArgumentParser()
    for field in dataclasses.fields(Config):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return Config(**vars(parser.parse_args()))


def setup_logging(folder):
    logger = logging.getLogger("train")
    logger.setLevel(logging.INFO)
    form = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    for handler in (logging.FileHandler(folder / "train.log", mode="w"), logging.StreamHandler(sys.stdout)):
        handler.setFormatter(form)
        logger.addHandler(handler)
    return logger


class LogEpochs(keras.callbacks.Callback):
    def __init__(self, logger):
        super().__init__()
        self.logger = logger

    def on_epoch_end(self, epoch, logs=None):
        self.logger.info("epoch %d loss %.6f", epoch, logs["loss"])


def main():
    config = parse_args()
    folder = pathlib.Path(config.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config), indent=2))
    logger = setup_logging(folder)
    keras.utils.set_random_seed(1)
    x = np.random.rand(60, 5).astype("float32")
    y = x @ np.arange(5.0, dtype="float32")
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(config.units, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(config.rate), "mse")
    logger.info("model has %d parameters", model.count_params())
    model.fit(x, y, batch_size=12, epochs=config.epochs, shuffle=False, verbose=0, callbacks=[LogEpochs(logger)])
    logger.info("done")
    logging.shutdown()
    lines = (folder / "train.log").read_text().splitlines()
    record(lines=len(lines), first=lines[0], last=lines[-1], losses=[float(line.split()[-1]) for line in lines[1:-1]])
    record(config=json.loads((folder / "config.json").read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
