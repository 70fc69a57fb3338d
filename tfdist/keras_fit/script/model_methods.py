"""Makes an unchanged Keras script train on all workers: replaces methods of models, and replicates variables."""

import contextlib
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import collective_guard, script_strategy
from tfdist.cluster.cluster import Cluster
from tfdist.config.patching import patch
from tfdist.keras_fit import api, compiled_model, make_run, messages
from tfdist.keras_fit.own_step import own_loop, own_setup
from tfdist.keras_fit.script import script_state

# Functions of tf.config that fail once TensorFlow has listed its devices.
_IGNORED_SETTINGS = ("set_visible_devices", "set_logical_device_configuration", "set_virtual_device_configuration")
_IGNORED_SETTINGS += ("set_memory_growth", "set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads")
_CONFIG_MODULES = (tf.config, tf.config.experimental, tf.config.threading)


@dataclasses.dataclass(slots=True)
class FitSeeds:
    """A seed for each call of `fit`, for the order of the examples and the random numbers in steps.

    Calls have different seeds. If the script sets the same global seed again, the seeds go on as they did after the
    first time, so a training that begins with `keras.utils.set_random_seed` can be repeated, as in Keras.
    """

    next_seed: int = 0
    # Global seed -> the value of `next_seed` when it was first set.
    first: dict[int, int] = dataclasses.field(default_factory=dict)

    def take(self) -> int:
        """Returns the seed of a call."""
        self.next_seed += 1
        return self.next_seed - 1

    def set_global(self, original: Callable[[int], None], seed: int) -> None:
        """Replaces `tf.random.set_seed`."""
        original(seed)
        self.next_seed = self.first.setdefault(seed, self.next_seed)


@contextlib.contextmanager
def distribute_methods(cluster: Cluster, workdir: Path | None) -> Iterator[None]:
    """Replaces Keras' methods, and makes variables and optimizers in the cluster's scope.

    Args:
        workdir: the directory of the script's runs: the first call of `fit` is saved in fit1/, the second in fit2/, ...
            None: nothing is saved.
    """
    # `compile` is replaced in the class that defines it. If keras.Model had a `compile` of its own, Keras would take it
    # for an override, and would not compile models that it loads.
    trainer = next(kind for kind in keras.Model.__mro__ if "compile" in vars(kind))
    seeds, calls = FitSeeds(), itertools.count(1)
    methods = _methods(cluster, workdir, seeds, calls)
    optimizer = keras.optimizers.Optimizer
    with contextlib.ExitStack() as stack:

        def reset_graph(original: Callable[[], None]) -> None:
            # The creator scope belongs to the default graph, which keras.utils.clear_session replaces.
            original()
            stack.enter_context(tf.variable_creator_scope(_creator(cluster)))

        replaced: list[tuple[Any, Iterable[str], Callable[..., Any]]] = [
            (tf.random, ["set_seed"], seeds.set_global),
            (trainer, ["compile"], functools.partial(compile_for, cluster)),
            *((keras.Model, [name], method) for name, method in methods.items()),
            (optimizer, ["__init__", "add_variable_from_reference"], functools.partial(_in_scope, cluster)),
            (optimizer, ["apply"], functools.partial(_apply_in_loop, cluster)),
            *((module, _IGNORED_SETTINGS, _ignore_setting) for module in _CONFIG_MODULES),
            (tf.compat.v1, ["reset_default_graph"], reset_graph),
        ]
        for owner, names, function in replaced:
            for name in names:
                if hasattr(owner, name):
                    stack.enter_context(patch(owner, name, function))
        stack.enter_context(script_strategy.replace_strategies(cluster, messages.log_once))
        stack.enter_context(tf.variable_creator_scope(_creator(cluster)))
        yield
        if workdir is not None and cluster.is_chief and (later := workdir / f"fit{next(calls)}").exists():
            messages.log(
                f"WARNING: the script has made fewer calls of fit than before: {later} was not reached. If the script "
                "skips a call, the next one takes its number, and resumes from the checkpoints of the skipped call: "
                "make all calls. Finished calls do not train again."
            )


def _methods(
    cluster: Cluster, workdir: Path | None, seeds: FitSeeds, calls: Iterator[int]
) -> dict[str, Callable[..., Any]]:
    def fit(original: Callable[..., Any], model: keras.Model, *args: Any, **keywords: Any) -> Any:
        given = _arguments(original, model, args, keywords)
        place, search = None, script_state.calling_search()
        if workdir is not None and not search:
            place = workdir / f"fit{next(calls)}"
        elif workdir is not None:
            messages.log_once(
                f"models that {search} trains are not saved in {workdir}, because {search} may skip finished trials, "
                "and the numbers of later calls of fit would change."
            )
        return api.fit(cluster, model, **given, workdir=place, seed=seeds.take())

    def evaluate(original: Callable[..., Any], model: keras.Model, *args: Any, **keywords: Any) -> Any:
        return api.evaluate(cluster, model, **_arguments(original, model, args, keywords))

    def predict(original: Callable[..., Any], model: keras.Model, *args: Any, **keywords: Any) -> Any:
        if cluster_lib.is_on_one_worker():  # In a callback.
            return original(model, *args, **keywords)
        return api.predict(cluster, model, **_arguments(original, model, args, keywords))

    def on_batch(original: Callable[..., Any], model: keras.Model, *args: Any, **keywords: Any) -> Any:
        given = _arguments(original, model, args, keywords)
        data = (given["x"], given.get("y"), given.get("sample_weight"))
        kind = original.__name__.partition("_")[0]
        make_run.check_functions(model, kind)
        model.reset_metrics()
        logs = own_loop.on_batch(cluster, model, kind, data, given.get("class_weight"))
        return compiled_model.evaluation_result(model, logs, given.get("return_dict", False))

    def predict_on_batch(original: Callable[..., Any], model: keras.Model, x: Any) -> Any:
        size = int(keras.tree.flatten(x)[0].shape[0])
        if compiled_model.overrides(model, "predict_step"):  # Keras passes it (x,) here, but x in `predict`.
            x = tf.data.Dataset.from_tensor_slices((keras.tree.lists_to_tuples(x),)).batch(size)
        return api.predict(cluster, model, x, batch_size=size, verbose=0)

    methods = {"fit": fit, "evaluate": evaluate, "predict": predict, "predict_on_batch": predict_on_batch}
    return methods | {"train_on_batch": on_batch, "test_on_batch": on_batch}


def compile_for(
    cluster: Cluster, original: Callable[..., None], model: keras.Model, *args: Any, **keywords: Any
) -> None:
    """Compiles as `Model.compile`, but resolves jit_compile="auto" without regard to the scope."""
    given = _arguments(original, model, args, keywords)
    if given.get("jit_compile", "auto") == "auto":
        given["jit_compile"] = own_setup.auto_jit_compile(cluster, model)
    original(model, **given)


def _arguments(original: Callable[..., Any], model: keras.Model, args: tuple, keywords: dict) -> dict[str, Any]:
    """Returns the arguments of a call by name, without the model."""
    given = dict(inspect.signature(original).bind(model, *args, **keywords).arguments)
    del given["self"]
    given |= given.pop("kwargs", {})
    distributed = {"x", "validation_data"} & given.keys()
    return given | {name: script_strategy.global_batches(given[name]) for name in distributed}


def _in_scope(cluster: Cluster, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    # While fit runs, tfdist enters the scope itself, and callbacks on the chief may make objects of their own.
    if script_state.in_tfdist_code():
        return original(*args, **keywords)
    with cluster.scope():
        return original(*args, **keywords)


def _apply_in_loop(
    cluster: Cluster,
    original: Callable[..., Any],
    optimizer: keras.optimizers.Optimizer,
    grads: Any,
    trainable_variables: Any = None,
) -> Any:
    """Calls the `apply` of an optimizer; in a loop of the script's own, logs that each worker runs the whole loop."""
    alone = cluster.num_replicas == 1 or collective_guard.in_any_scope()
    if not alone and not script_state.in_tfdist_code() and script_state.in_script():
        messages.log_once(
            "the script applies gradients in a loop of its own, which every worker runs as a whole on one device: "
            "tfdist.step and tfdist.batches distribute it (docs/scripts.md, Own loops)."
        )
        if not optimizer.built and trainable_variables is not None:
            # With several workers of several devices, TensorFlow cannot initialise variables within a tf.function.
            trainable_variables = list(trainable_variables)
            with tf.init_scope(), keras.name_scope(optimizer.name, caller=optimizer):
                optimizer.build(trainable_variables)
    return original(optimizer, grads, trainable_variables)


def _ignore_setting(original: Callable[..., Any], *args: Any, **keywords: Any) -> None:
    messages.log_once(
        f"{original.__name__} is ignored: TensorFlow was initialised before the script, with the devices that the "
        "launcher gives each worker. Use settings of the launcher, --logical_devices, and TensorFlow's environment "
        "variables, such as TF_FORCE_GPU_ALLOW_GROWTH=true and TF_NUM_INTRAOP_THREADS.",
    )


def _creator(cluster: Cluster) -> Callable[..., tf.Variable]:
    """Returns a variable creator that enters the cluster's scope."""
    entered = False

    def create(next_creator: Callable[..., tf.Variable], **keywords: Any) -> tf.Variable:
        nonlocal entered
        if entered or script_state.in_tfdist_code() or collective_guard.in_any_scope():
            return next_creator(**keywords)
        entered = True
        try:
            with cluster.scope():
                return tf.Variable(**{name: value for name, value in keywords.items() if value is not None})
        finally:
            entered = False

    return create
