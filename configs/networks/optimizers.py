"""The optimizers of configs/cifar.py and configs/cifar_fast.py. Saved models do not depend on them."""

import functools
import math

import keras
import numpy as np
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
    """Returns SGD with Nesterov momentum and lookahead: the weights are regularly reset to their moving average.

    After Zhang et al. (arXiv 1907.08610), in the variant of arXiv 2404.00498. Every `interval` steps, the average
    becomes a x average + (1 - a) x weights, and the weights are set to the average. The factor a grows with the third
    power of the run's progress, from 0 to decay ** interval.

    Args:
        weight_decay: as in `keras.optimizers.SGD`: each step subtracts learning rate x weight_decay x weight.
        offset_rate: factor of the learning rate for the offsets ("beta") of normalisation layers.
        decay: the decay of the average per step, at the end of the run.
        total_steps: the length of the run in steps; None: that of the schedule.

    Raises:
        ValueError: an argument is out of range, or the length of the run is unknown.
    """
    total_steps = total_steps or getattr(schedule, "total_steps", None)
    if not total_steps:
        raise ValueError("config.optimizer.total_steps must be set if the schedule has none. Received: None")
    if interval < 1 or not 0.0 <= decay <= 1.0:
        raise ValueError(
            "config.optimizer: interval must be at least 1 and decay within 0 .. 1. "
            f"Received: interval={interval}, decay={decay}"
        )
    return LookaheadSGD(schedule, momentum, weight_decay, offset_rate, interval, decay, total_steps)


class _SGD(keras.optimizers.SGD):
    """Keras' SGD with Nesterov momentum, and a separate learning rate for the offsets of normalisation layers."""

    def __init__(self, schedule, momentum, weight_decay, offset_rate):
        super().__init__(schedule, momentum=momentum, nesterov=True, weight_decay=weight_decay or None)
        self._offset_rate = offset_rate

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        """Updates one weight and its momentum."""
        path = self._trainable_variables[self._get_variable_index(variable)].path
        factor = self._offset_rate if path.endswith("/beta") else 1.0
        super().update_step(gradient, variable, learning_rate * factor)


class LookaheadSGD(_SGD):
    """Created by `lookahead_sgd`."""

    def __init__(self, schedule, momentum, weight_decay, offset_rate, interval, decay, total_steps):
        super().__init__(schedule, momentum, weight_decay, offset_rate)
        self._interval = interval
        self._decay = decay
        self._total_steps = total_steps
        self._averages: list[keras.Variable] = []

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the slots: momenta, and averages, which are initialised with the weights."""
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
        averaged = share * average + (1 - share) * variable
        now = keras.ops.equal(done % self._interval, 0)
        self.assign(average, keras.ops.where(now, averaged, average))
        self.assign(variable, keras.ops.where(now, averaged, variable))


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
    """Returns Muon, which updates convolution kernels by orthogonal matrices and all other weights by SGD.

    After K. Jordan (https://kellerjordan.github.io/posts/muon): the Nesterov momentum of a kernel, written as a matrix
    of (height x width x inputs) rows and one column per filter, is replaced by the nearest orthogonal matrix, so that
    all directions are learnt equally fast; a few Newton-Schulz iterations approximate it. Before the update, the kernel
    is scaled so that the root mean square of its filters' norms is 1: a normalisation must follow each convolution.

    Args:
        schedule: the learning rate schedule of the convolution kernels (all weights of rank 4).
        other_rate: factor of the learning rate for all other weights, which `keras.optimizers.SGD` updates with
            Nesterov momentum.
        offset_rate: additional factor of the learning rate for the offsets ("beta") of normalisation layers.
        weight_decay: of the other weights, as in `keras.optimizers.SGD`. For kernels, the scaling would cancel it.

    Raises:
        ValueError: an argument is out of range.
    """
    if iterations < 1 or not 0.0 <= momentum < 1.0 or not 0.0 < other_momentum < 1.0:
        raise ValueError(
            "config.optimizer: iterations must be at least 1, momentum at least 0 and below 1, other_momentum above 0 "
            f"and below 1. Received: iterations={iterations}, momentum={momentum}, other_momentum={other_momentum}"
        )
    return Muon(schedule, momentum, iterations, other_rate, other_momentum, offset_rate, weight_decay)


class Muon(_SGD):
    """Created by `muon`."""

    # On several replicas, tfdist sets this to a `tfdist.training.step.updates.work_sharing.WorkSharing`.
    work_sharing = None

    def __init__(self, schedule, momentum, iterations, other_rate, other_momentum, offset_rate, weight_decay):
        super().__init__(schedule, other_momentum, weight_decay, offset_rate)
        self._kernel_momentum = momentum
        self._newton_schulz_iterations = iterations
        self._other_rate = other_rate

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the momenta."""
        if not self.built:
            # Their norm is set in every step.
            self.exclude_from_weight_decay([variable for variable in variables if len(variable.shape) == 4])
        super().build(variables)

    def apply(self, grads: list[tf.Tensor | None], trainable_variables: list[keras.Variable] | None = None) -> None:
        """Updates the weights; with `work_sharing`, every replica computes the matrices of some kernels only.

        The gradients are the same on all replicas; None for a variable without one.
        """
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not self.built:
            self.build(variables)
        grads = list(grads)
        kernels = [i for i, v in enumerate(variables) if len(v.shape) == 4 and grads[i] is not None]
        tasks = [functools.partial(self._direction_and_norm, grads[i], variables[i]) for i in kernels]
        if self.work_sharing is None:
            results = [task() for task in tasks]
        else:
            shapes = [variables[i].shape for i in kernels]
            sizes = [math.prod(shape) for shape in shapes]
            # The cost is that of the matrix products.
            costs = [size * min(size // shape[-1], shape[-1]) for size, shape in zip(sizes, shapes, strict=True)]
            results = self.work_sharing.run_tasks(tasks, [size + 1 for size in sizes], costs)
        for i, result in zip(kernels, results, strict=True):
            grads[i] = (grads[i], result)
        super().apply(grads, variables)

    def _direction_and_norm(self, gradient: tf.Tensor, variable: keras.Variable) -> tf.Tensor:
        """Returns the elements of the orthogonal matrix, then the norm of the kernel: [size + 1]."""
        momentum, velocity = self._kernel_momentum, self.momentums[self._get_variable_index(variable)]
        gradient = keras.ops.cast(gradient, variable.dtype)
        direction = keras.ops.reshape(gradient + momentum * (momentum * velocity + gradient), [-1, variable.shape[-1]])
        direction = keras.ops.reshape(_orthogonal(direction, self._newton_schulz_iterations), [-1])
        norm = keras.ops.maximum(keras.ops.sqrt(keras.ops.sum(keras.ops.square(variable))), 1e-7)
        return keras.ops.concatenate([direction, keras.ops.reshape(norm, [1])])

    def update_step(
        self, gradient: tf.Tensor | tuple[tf.Tensor, tf.Tensor], variable: keras.Variable, learning_rate: tf.Tensor
    ) -> None:
        """Updates one weight and its momentum; `gradient` of a kernel: also the result of `_direction_and_norm`."""
        if not isinstance(gradient, tuple):
            super().update_step(gradient, variable, learning_rate * self._other_rate)
            return
        gradient, result = gradient
        velocity = self.momentums[self._get_variable_index(variable)]
        self.assign(velocity, self._kernel_momentum * velocity + keras.ops.cast(gradient, variable.dtype))
        direction, norm = keras.ops.reshape(result[:-1], variable.shape), result[-1]
        scaled = variable * (math.sqrt(variable.shape[-1]) / norm)
        self.assign(variable, scaled - keras.ops.cast(learning_rate, variable.dtype) * direction)


def _orthogonal(matrix: tf.Tensor, iterations: int) -> tf.Tensor:
    """Returns approximately the orthogonal matrix nearest to `matrix` [rows, columns]: singular values 0.7 to 1.2.

    The polynomial is that of the reference in `muon`; singular values far below the largest need more iterations. Each
    iteration multiplies by a polynomial of the square matrix x x'. Three iterations are therefore combined on this
    small matrix, with two multiplications by `matrix`; combining more than three would increase rounding errors.
    """
    wide = matrix.shape[0] < matrix.shape[1]
    x = matrix if wide else keras.ops.transpose(matrix)
    x = x / (keras.ops.sqrt(keras.ops.sum(keras.ops.square(x))) + 1e-7)
    # A constant: Keras' eye copies a number from the host in every step.
    identity = tf.constant(np.eye(x.shape[0]), x.dtype)
    for start in range(0, iterations, 3):
        square = keras.ops.matmul(x, keras.ops.transpose(x))
        product = identity
        for _ in range(min(3, iterations - start)):
            factor = 3.4445 * identity - 4.7750 * square + 2.0315 * keras.ops.matmul(square, square)
            square = keras.ops.matmul(factor, keras.ops.matmul(square, factor))
            product = keras.ops.matmul(factor, product)
        x = keras.ops.matmul(product, x)
    return x if wide else keras.ops.transpose(x)
