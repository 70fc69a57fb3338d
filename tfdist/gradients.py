"""What happens to gradients between the backward pass and the optimizer: summed over replicas, scaled, clipped."""

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist import config as config_lib

Gradients = list[tf.Tensor | None]
# The methods of an optimizer in whose place a step puts others: `take_over_reduction` here, and fused.py.
PUT_ON_OPTIMIZERS = ("_all_reduce_sum_gradients", "update_step")


def all_reduce(gradients: Gradients, options: config_lib.Communication) -> Gradients:
    """Sums every gradient over all replicas; to be called in `strategy.run`.

    Args:
        gradients: one tensor per variable, of any shapes; `None` where a variable has no gradient. Sparse gradients
            become dense.
        options: `dtype` is the type on the wire; the sums are handed back in the gradients' own type. With "float32",
            float64 travels as it is.

    Returns:
        The sums, in the same places.
    """
    context = tf.distribute.get_replica_context()
    present = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    if context.num_replicas_in_sync > 1 and present:
        wire = [tf.cast(gradient, _wire_type(gradient, options)) for gradient in present]
        communication = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=options.bytes_per_pack)
        # What travels together has one type.
        for dtype in dict.fromkeys(tensor.dtype for tensor in wire):
            chosen = [i for i, tensor in enumerate(wire) if tensor.dtype == dtype]
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [wire[i] for i in chosen], options=communication)
            for i, total in zip(chosen, sums, strict=True):
                wire[i] = total
        present = [tf.cast(total, gradient.dtype) for total, gradient in zip(wire, present, strict=True)]
    results = iter(present)
    return [None if gradient is None else next(results) for gradient in gradients]


def _wire_type(gradient: tf.Tensor, options: config_lib.Communication) -> tf.DType:
    exact = options.dtype == "float32" and gradient.dtype == tf.float64
    return gradient.dtype if exact else tf.as_dtype(options.dtype)


def replicas() -> int:
    """The number of all replicas; to be called in `strategy.run`."""
    return tf.distribute.get_replica_context().num_replicas_in_sync


def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    """Sums `value` (any shape) over all replicas, apart from the gradients; to be called in `strategy.run`."""
    if replicas() == 1:
        return value
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def clip(gradients: Gradients, norm: float) -> Gradients:
    """Scales the summed gradients so that their global L2 norm is at most `norm` (arXiv 1211.5063)."""
    return tf.clip_by_global_norm(gradients, norm)[0]


def all_finite(gradients: Gradients) -> tf.Tensor:
    """Whether no summed gradient holds an infinity or NaN: bool [], the same on every replica."""
    # A sum is not finite as soon as one term is not, so one reduction per tensor tells.
    sums = [tf.reduce_sum(tf.abs(tf.cast(gradient, tf.float32))) for gradient in gradients if gradient is not None]
    return tf.reduce_all(tf.math.is_finite(tf.stack(sums or [tf.zeros([])])))


def take_over_reduction(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes `optimizer.apply` take gradients that are summed already.

    Keras clips before its own sum over replicas, each replica its own part (an update of norm 0.97 where 0.5 was
    asked for), and looks for overflows on replica 0 alone. Given sums, what it clips is right.
    """
    optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Checks that the optimizer of a config does nothing that the config has a field for.

    Raises:
        ValueError: the optimizer clips, accumulates or scales by itself; says where to ask for it.
    """
    for name in ("clipnorm", "global_clipnorm", "clipvalue"):
        if getattr(optimizer, name, None) is not None:
            raise ValueError(
                f"config.optimizer.{name}={getattr(optimizer, name)} would clip each replica's gradients before they "
                "are summed: remove it and set config.train.clip_norm, which clips their sum."
            )
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            f"config.optimizer.gradient_accumulation_steps={optimizer.gradient_accumulation_steps} does not work in a "
            "compiled step: remove it and set config.train.micro_batches."
        )
    if getattr(optimizer, "loss_scale_factor", None):
        raise ValueError(
            f"config.optimizer.loss_scale_factor={optimizer.loss_scale_factor} would divide gradients of a loss that "
            'nobody has multiplied: remove it and set config.train.precision="float16", which does both.'
        )
    if getattr(optimizer, "ema_overwrite_frequency", None):
        raise ValueError(
            f"config.optimizer.ema_overwrite_frequency={optimizer.ema_overwrite_frequency} does not work in a "
            "compiled step: remove it."
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "config.optimizer names a LossScaleOptimizer, which looks at replica 0's gradients alone: name the inner "
            'optimizer and set config.train.precision="float16", which scales the loss on all.'
        )


def check_trainable(model: keras.Model) -> None:
    """Checks that a model has something to train.

    Raises:
        ValueError: it has no trainable weights.
    """
    if not model.trainable_variables:
        raise ValueError(
            f"The model {model.name!r} has no weights to train: of its {len(model.weights)} all are frozen. "
            "Set `trainable` of a layer to True."
        )


def apply_if(
    finite: tf.Tensor, gradients: Gradients, apply: Callable[[Gradients], None], otherwise: Callable[[], None]
) -> None:
    """Calls `apply(gradients)` on every replica where `finite` (bool [], the same everywhere), else `otherwise()`."""

    def on_all_replicas(strategy: tf.distribute.Strategy, finite: tf.Tensor, gradients: Gradients) -> None:
        # The branch is taken outside of the replicas: an optimizer's update inside a branch of a replica is refused.
        tf.cond(
            strategy.experimental_local_results(finite)[0],
            lambda: _run(strategy, apply, gradients),
            lambda: _run(strategy, otherwise),
        )

    tf.distribute.get_replica_context().merge_call(on_all_replicas, args=(finite, gradients))


def _run(strategy: tf.distribute.Strategy, function: Callable, *args: Gradients) -> tf.Tensor:
    strategy.extended.call_for_each_replica(function, args=args)
    return tf.zeros([])


@dataclasses.dataclass(slots=True)
class LossScale:
    """Dynamic loss scaling for float16 (arXiv 1710.03740): halved at an overflow, doubled after `growth_steps`.

    Every replica holds its own copy and changes it alike, for the decision is taken on the summed gradients.
    """

    value: tf.Variable
    good_steps: tf.Variable
    growth_steps: int = 2000

    @classmethod
    def create(cls, initial: float = 2.0**15) -> "LossScale":
        """Makes the variables; to be called in `strategy.scope`."""
        none = tf.VariableAggregation.NONE
        return cls(
            tf.Variable(initial, trainable=False, aggregation=none, name="loss_scale"),
            # int64: TensorFlow keeps int32 variables off GPUs.
            tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=none, name="loss_scale_good_steps"),
        )

    def variables(self) -> dict[str, tf.Variable]:
        """What a checkpoint must hold."""
        return {"loss_scale/value": self.value, "loss_scale/good_steps": self.good_steps}

    def update(self, finite: bool) -> None:
        """Counts a step that was applied (`finite`) or left out; to be called in `strategy.run`."""
        if not finite:
            self.value.assign(tf.maximum(self.value / 2.0, 1.0))
            self.good_steps.assign(0)
            return
        grown = self.good_steps + 1 >= self.growth_steps
        self.value.assign(tf.where(grown, self.value * 2.0, self.value))
        self.good_steps.assign(tf.where(grown, tf.zeros([], tf.int64), self.good_steps + 1))
