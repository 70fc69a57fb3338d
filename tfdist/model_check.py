"""Whether a model that a script has compiled can be trained, or evaluated, on several replicas."""

import keras

from tfdist.cluster.cluster import Cluster


def check_model(cluster: Cluster, model: keras.Model, purpose: str) -> None:
    """Checks that `model` was compiled in the cluster's scope, and does nothing that tfdist cannot do for it.

    Args:
        purpose: "fit" or "evaluate".

    Raises:
        ValueError: says what is missing or cannot be done, and what to do instead.
    """
    name = type(model).__name__
    if not model.compiled or model.optimizer is None:
        raise ValueError(f"Call model.compile(optimizer=..., loss=...) in cluster.scope() before tfdist.{purpose}.")
    if any(not cluster.holds(variable.value) for variable in (*model.variables, *model.optimizer.variables)):
        raise ValueError(
            f"The {name} or its optimizer was made outside of cluster.scope(): build and compile the model "
            "within `with cluster.scope():`."
        )
    own = "train_step" if purpose == "fit" else "test_step"
    for step in {own, "test_step"}:
        if getattr(type(model), step) is not getattr(keras.Model, step):
            raise ValueError(
                f"{name} has a {step} of its own, of which tfdist cannot know what to sum over replicas: override "
                "compute_loss(x, y, y_pred, sample_weight, training) and compute_metrics instead."
            )
    losses = [] if model._compile_loss is None else keras.tree.flatten(model._compile_loss._user_loss)
    if any(isinstance(loss, keras.Loss) and loss.reduction in (None, "none") for loss in losses):
        raise ValueError(
            'A loss with reduction=None is no number to minimise: use reduction="sum_over_batch_size", the default.'
        )
    if hasattr(model, "preprocess_samples") and getattr(model, "preprocessor", None) is not None:
        raise ValueError(
            f"{name} has a preprocessor, which keras-hub's own fit would call: map it over the data, and set "
            "model.preprocessor = None."
        )
    if model.run_eagerly:
        raise ValueError("compile(run_eagerly=True) cannot be distributed: leave it out.")
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
        if getattr(optimizer, name, None):
            raise ValueError(
                f"The optimizer's {name}={getattr(optimizer, name)} does not work in a compiled step over replicas: "
                "leave it out."
            )
