"""Recomputation by a budget in a training of a script: the option recompute_mb."""

import contextlib
import math

import keras

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.config import patching, specs
from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters.base import DataAdapter
from tfdist.keras_fit.own_step import own_setup


def install(
    cluster: Cluster,
    model: keras.Model,
    config: config_lib.Config,
    adapter: DataAdapter,
    stack: contextlib.ExitStack,
) -> None:
    """Lets segments of a built model be computed again until the end of `stack`, as `config.train.recompute_mb` says.

    Raises:
        ValueError: the model cannot be cut, or is not run as a graph.
    """
    for name in ("jit_compile", "run_eagerly"):
        if getattr(model, name):
            raise ValueError(
                f"recompute_mb={config.train.recompute_mb:g} needs a graph that TensorFlow runs: remove {name}=True of "
                "compile, or train without recompute_mb."
            )
    spec = adapter.element_spec[0] if own_setup.overrides(model) else adapter.element_spec
    given, *_ = keras.utils.unpack_x_y_sample_weight(spec)
    inputs = model.inputs if isinstance(model, keras.Function) else []
    by_order = dict(zip((tensor.name for tensor in inputs), keras.tree.flatten(given), strict=False))
    columns = given if isinstance(given, dict) else by_order
    rows = math.ceil(adapter.batch_size / (config.train.virtual_replicas or cluster.num_replicas))
    stack.enter_context(patching.restore_after([model], ["call"]))
    budget = config.train.recompute_mb
    again, segments = specs.part("train.recompute_mb")(model, budget, rows, columns, field="recompute_mb")
    if cluster.is_chief:
        what = f"{again} of {segments} segments of the model" if segments else "nothing, as all outputs fit"
        messages.say_once(f"recompute_mb={budget:g} computes again: {what}.", key=f"recompute {id(model)} {rows}")
