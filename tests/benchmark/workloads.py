"""The benchmark's workloads: a config and synthetic data for each. Imports no TensorFlow."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdist import config as config_lib


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, its data, and the batch of each worker."""

    title: str
    model: dict[str, Any]
    # Shape of an example, uint8, and the number of examples.
    shape: tuple[int, int, int]
    examples: int
    # Examples of each worker in a step.
    batch: int
    # Pixels to pad before a random crop and flip; 0: no augmentation.
    pad: int = 0

    def config(self, folder: Path, workers: int, overrides: Mapping[str, Any]) -> config_lib.Config:
        """The config of a run on data in `folder`; `overrides` are values by dotted field."""
        prepare = {"target": "tfdist.zoo.prepare:image", "pad": self.pad, "flip": self.pad > 0}
        config = config_lib.Config(
            model=dict(self.model),
            data=config_lib.Data(
                source={"target": "tfdist.zoo.sources:npz", "path": str(data_file(self, folder))},
                prepare=prepare,
                batch_size=self.batch * workers,
                evaluation_split=None,
            ),
            learning_rate=config_lib.LearningRate(peak=0.01),
            train=config_lib.Train(steps=10_000_000, call_seconds=0.5),
            report=config_lib.Report(tensorboard=False),
        )
        for name, value in overrides.items():
            *sections, field = name.split(".")
            holder: Any = config
            for section in sections:
                holder = getattr(holder, section)
            setattr(holder, field, value)
        return config


_CIFAR = {"num_classes": 10, "input_shape": (32, 32, 3)}
WORKLOADS = {
    "mlp": Workload(
        title="MLP 784-128-10",
        model={"target": "tfdist.zoo.models:mlp", "num_classes": 10},
        shape=(28, 28, 1),
        examples=60_000,
        batch=64,
    ),
    "mnist": Workload(
        title="the MNIST network, two convolutions",
        model={"target": "tfdist.zoo.models:mnist_cnn", "num_classes": 10},
        shape=(28, 28, 1),
        examples=60_000,
        batch=64,
    ),
    "resnet20": Workload(
        title="ResNet-20",
        model={"target": "tfdist.zoo.models:cifar_resnet", "depth": 20, **_CIFAR},
        shape=(32, 32, 3),
        examples=20_000,
        batch=64,
        pad=4,
    ),
    "resnet50v2": Workload(
        title="ResNet50V2 at 32x32",
        model={"target": "tfdist.zoo.models:application", "name": "ResNet50V2", **_CIFAR},
        shape=(32, 32, 3),
        examples=20_000,
        batch=16,
        pad=4,
    ),
    "transformer": Workload(
        title="a vision transformer, 4 layers, 256 wide",
        model={"target": "tests.benchmark.transformer:network", **_CIFAR},
        shape=(32, 32, 3),
        examples=20_000,
        batch=16,
        pad=4,
    ),
}


def of_job(job: Mapping[str, Any]) -> Workload:
    """The workload that a job names, with the fields that it changes."""
    return dataclasses.replace(WORKLOADS[job["workload"]], **job.get("changes", {}))


def data_file(workload: Workload, folder: Path) -> Path:
    """The file of a workload's data."""
    return folder / f"{workload.examples}x{'x'.join(map(str, workload.shape))}.npz"


def write_data(workload: Workload, folder: Path) -> None:
    """Generates the data of a workload, uint8 images with labels of 10 classes, unless the file exists."""
    path = data_file(workload, folder)
    if not path.exists():
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (workload.examples, *workload.shape), np.uint8)
        labels = generator.integers(0, 10, workload.examples)
        aside = path.with_name(f"{os.getpid()}.npz")
        np.savez(aside, x_train=images, y_train=labels)
        aside.replace(path)
