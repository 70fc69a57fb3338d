"""The loss scale of float16, which checkpoints hold."""

import dataclasses

import tensorflow as tf

# Without a limit, a long run without overflows would double the scale to infinity.
LARGEST_SCALE = 2.0**24


@dataclasses.dataclass(slots=True)
class LossScale:
    """Dynamic loss scaling for float16 (arXiv 1710.03740): halved at an overflow, doubled after `growth_steps` without.

    Every replica has its own copy. The copies stay equal: the decision depends only on sums over all replicas.
    """

    value: tf.Variable
    good_steps: tf.Variable
    growth_steps: int = 2000

    @classmethod
    def create(cls, initial: float = 2.0**15) -> "LossScale":
        """Makes the variables; called in `strategy.scope`."""
        none = tf.VariableAggregation.NONE
        return cls(
            tf.Variable(initial, trainable=False, aggregation=none, name="loss_scale"),
            # int64: TensorFlow keeps int32 variables off GPUs.
            tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=none, name="loss_scale_good_steps"),
        )

    def variables(self) -> dict[str, tf.Variable]:
        """Returns the variables that a checkpoint must hold, by name."""
        return {"loss_scale/value": self.value, "loss_scale/good_steps": self.good_steps}

    def update(self, finite: bool) -> None:
        """Counts a step that was applied (`finite`) or skipped; called in `strategy.run`."""
        if not finite:
            self.value.assign(tf.maximum(self.value / 2.0, 1.0))
            self.good_steps.assign(0)
            return
        grown = self.good_steps + 1 >= self.growth_steps
        self.value.assign(tf.where(grown, tf.minimum(self.value * 2.0, LARGEST_SCALE), self.value))
        self.good_steps.assign(tf.where(grown, tf.zeros([], tf.int64), self.good_steps + 1))
