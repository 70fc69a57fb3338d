"""A helper module of a user's, through which functions of impure.py draw, and pure twins of the same."""

import os

import numpy as np


def scale() -> float:
    """Draws a factor near 1."""
    return float(np.random.uniform(0.8, 1.2))  # here: helper


def fixed_scale() -> float:
    """Draws the same factor at each start."""
    return float(np.random.default_rng(0).uniform(0.8, 1.2))


def noisy(x: np.ndarray) -> np.ndarray:
    """Adds noise, outside of TensorFlow."""
    return x + np.random.normal(size=x.shape).astype("float32")


def darker(x: np.ndarray) -> np.ndarray:
    """Halves images, outside of TensorFlow."""
    os.getpid()
    return x / 2


def set_rate(layer, rate: float) -> None:
    """Sets the rate of a dropout."""
    layer.rate = rate


def assign(kept, name: str, value: float) -> None:
    """Changes a variable that nothing here refers to."""
    kept(name, None).assign(value)
