"""Optimizers that Keras does not have. Saved models need none of them."""

import math

import keras
import tensorflow as tf


def lookahead_sgd(
    schedule: keras.optimizers.schedules.LearningRateSchedule,
    *,
    momentum: float = 0.85,
    weight_decay: float = 0.0,
    offset_rate: float = 1.0,
    interval: int = 5,
    decay: float = 0.95,
    total_steps: int | None = None,
) -> "LookaheadSGD":
    """Returns SGD with Nesterov momentum whose weights fall back, now and then, to a moving average of themselves.

    After Zhang et al. (arXiv 1907.08610), as arXiv 2404.00498 has it: every `interval` steps the average moves to
    the weights, keeping a share of itself that grows to decay ** interval with the third power of the run's
    progress, and the weights are set to the average.

    Args:
        schedule: the learning rate.
        momentum: as in `keras.optimizers.SGD`.
        weight_decay: as there: learning rate x weight_decay of each weight is taken away in every step.
        offset_rate: what the learning rate is multiplied by for the offsets ("beta") of normalisation layers.
        interval: steps between two looks back.
        decay: the share of the average that is left after one step, at the end of the run.
        total_steps: the length of the run; None: the schedule's.

    Raises:
        ValueError: an argument is out of its range, or no length is known.
    """
    total_steps = total_steps or getattr(schedule, "total_steps", None)
    if not total_steps:
        raise ValueError("config.optimizer.total_steps must be set where the schedule has none. Received: None")
    if interval < 1 or not 0.0 <= decay <= 1.0:
        raise ValueError(
            "config.optimizer: interval must be at least 1 and decay within 0 .. 1. "
            f"Received: interval={interval}, decay={decay}"
        )
    return LookaheadSGD(schedule, momentum, weight_decay, offset_rate, interval, decay, total_steps)


class _SGD(keras.optimizers.SGD):
    """Keras' SGD with Nesterov momentum, and a learning rate of their own for the offsets of normalisation layers."""

    def __init__(self, schedule, momentum, weight_decay, offset_rate):
        super().__init__(schedule, momentum=momentum, nesterov=True, weight_decay=weight_decay or None)
        self._offset_rate = offset_rate

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        """Updates one weight and its momentum."""
        path = self._trainable_variables[self._get_variable_index(variable)].path
        factor = self._offset_rate if path.endswith("/beta") else 1.0
        super().update_step(gradient, variable, learning_rate * factor)


class LookaheadSGD(_SGD):
    """Made by `lookahead_sgd`."""

    def __init__(self, schedule, momentum, weight_decay, offset_rate, interval, decay, total_steps):
        super().__init__(schedule, momentum, weight_decay, offset_rate)
        self._interval = interval
        self._decay = decay
        self._total_steps = total_steps
        self._averages: list[keras.Variable] = []

    def build(self, variables: list[keras.Variable]) -> None:
        """Makes the slots: momenta, and averages that start as the weights."""
        if self.built:
            return
        super().build(variables)
        self._averages = self.add_optimizer_variables(variables, "average")
        for average, variable in zip(self._averages, variables, strict=True):
            average.assign(variable)

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        """Updates one weight, its momentum and its average."""
        super().update_step(gradient, variable, learning_rate)
        average = self._averages[self._get_variable_index(variable)]
        done = self.iterations + 1
        progress = keras.ops.minimum(keras.ops.cast(done, "float32") / self._total_steps, 1.0)
        share = self._decay**self._interval * progress**3
        share = keras.ops.cast(share, average.dtype)
        looked_back = share * average + (1 - share) * variable
        now = keras.ops.equal(done % self._interval, 0)
        self.assign(average, keras.ops.where(now, looked_back, average))
        self.assign(variable, keras.ops.where(now, looked_back, variable))


def muon(
    schedule: keras.optimizers.schedules.LearningRateSchedule,
    *,
    momentum: float = 0.6,
    iterations: int = 3,
    other_rate: float = 1.0,
    other_momentum: float = 0.85,
    offset_rate: float = 1.0,
    weight_decay: float = 0.0,
) -> "Muon":
    """Returns an optimizer that moves the kernels of convolutions by orthogonal matrices, and all else by SGD.

    After K. Jordan (https://kellerjordan.github.io/posts/muon): the Nesterov momentum of a kernel, written as a matrix
    of (height x width x inputs) rows and a column for each filter, is replaced by the orthogonal matrix next to it, so
    that all directions are learnt at one pace. A few Newton-Schulz iterations come near enough. Before it, the kernel
    is scaled so that its filters have the norm 1 in the root mean square: only for kernels that a normalisation
    follows.

    Args:
        schedule: the learning rate of the kernels of convolutions (all weights of rank 4).
        momentum: how much of the gradients before stays, in a kernel.
        iterations: of Newton and Schulz.
        other_rate: what the learning rate is multiplied by for all other weights; they are moved by SGD with
            Nesterov momentum, as `keras.optimizers.SGD` does it.
        other_momentum: its momentum.
        offset_rate: what the learning rate of offsets ("beta") of normalisation layers is multiplied by, beyond that.
        weight_decay: as in `keras.optimizers.SGD`: learning rate x weight_decay of each of the other weights is taken
            away in every step. Of kernels the scaling leaves nothing of it.

    Raises:
        ValueError: an argument is out of its range.
    """
    if iterations < 1 or not 0.0 <= momentum < 1.0 or not 0.0 < other_momentum < 1.0:
        raise ValueError(
            "config.optimizer: iterations must be at least 1, momentum within 0 .. 1, and other_momentum above 0 and "
            f"below 1. Received: iterations={iterations}, momentum={momentum}, other_momentum={other_momentum}"
        )
    return Muon(schedule, momentum, iterations, other_rate, other_momentum, offset_rate, weight_decay)


class Muon(_SGD):
    """Made by `muon`."""

    def __init__(self, schedule, momentum, iterations, other_rate, other_momentum, offset_rate, weight_decay):
        super().__init__(schedule, other_momentum, weight_decay, offset_rate)
        self._kernel_momentum = momentum
        self._newton_schulz_iterations = iterations
        self._other_rate = other_rate

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        """Updates one weight and its momentum."""
        if len(variable.shape) != 4:
            super().update_step(gradient, variable, learning_rate * self._other_rate)
            return
        velocity = self.momentums[self._get_variable_index(variable)]
        gradient = keras.ops.cast(gradient, variable.dtype)
        self.assign(velocity, self._kernel_momentum * velocity + gradient)
        direction = keras.ops.reshape(gradient + self._kernel_momentum * velocity, [-1, variable.shape[-1]])
        direction = keras.ops.reshape(_orthogonal(direction, self._newton_schulz_iterations), variable.shape)
        norm = keras.ops.maximum(keras.ops.sqrt(keras.ops.sum(keras.ops.square(variable))), 1e-7)
        scaled = variable * (math.sqrt(variable.shape[-1]) / norm)
        self.assign(variable, scaled - keras.ops.cast(learning_rate, variable.dtype) * direction)


def _orthogonal(matrix: tf.Tensor, iterations: int) -> tf.Tensor:
    """Returns about the orthogonal matrix nearest to `matrix` [rows, columns]: its singular values become 0.7 to 1.2.

    The polynomial is that of the source named at `muon`; singular values far below the largest need more iterations.
    All that an iteration does is to multiply by a polynomial of the square matrix x x'. So three of them are taken on
    that small matrix, and `matrix` itself is multiplied twice for the three; beyond three, rounding errors would grow.
    """
    wide = matrix.shape[0] < matrix.shape[1]
    x = matrix if wide else keras.ops.transpose(matrix)
    x = x / (keras.ops.sqrt(keras.ops.sum(keras.ops.square(x))) + 1e-7)
    identity = keras.ops.eye(x.shape[0], dtype=x.dtype)
    for start in range(0, iterations, 3):
        square = keras.ops.matmul(x, keras.ops.transpose(x))
        product = identity
        for _ in range(min(3, iterations - start)):
            factor = 3.4445 * identity - 4.7750 * square + 2.0315 * keras.ops.matmul(square, square)
            square = keras.ops.matmul(factor, keras.ops.matmul(square, factor))
            product = keras.ops.matmul(factor, product)
        x = keras.ops.matmul(product, x)
    return x if wide else keras.ops.transpose(x)
