"""`float(variable)` and `int(variable)` for mirrored variables, as for variables of one device."""

from tensorflow.python.distribute import values


def enable() -> None:
    """Adds both to TensorFlow's class, which lacks them. Callbacks call `float(self.model.optimizer.learning_rate)`."""
    for name, kind in (("__float__", float), ("__int__", int)):
        if not hasattr(values.MirroredVariable, name):
            setattr(values.MirroredVariable, name, lambda variable, kind=kind: kind(variable.numpy()))
