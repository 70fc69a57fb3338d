"""Optional features of a run: one file per feature, and `ALL`, the only list of them.

A file has the checks of the feature's options, and what the feature does to a run; `Feature` says when each function is
called. callback_runner.py and callback_state.py are parts of callbacks.py. Importing this package does not import
TensorFlow; functions import what needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfdist.config import validate
from tfdist.config.schema import Config
from tfdist.training.features import (
    batch_norm,
    callbacks,
    nonfinite,
    profile,
    recompute,
    replica_check,
    virtual_replicas,
)

if TYPE_CHECKING:
    import keras

    from tfdist.cluster.cluster import Cluster
    from tfdist.data.pipelines import Inputs
    from tfdist.report.reporter import Reporter
    from tfdist.training.loop_services import LoopAction
    from tfdist.training.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The functions of a feature, in the order in which a run calls them; by default each does nothing."""

    # (config) -> what is wrong with the options, each as "train.field=value needs ...".
    find_errors: Callable[[Config], Iterable[str]] = lambda config: ()
    # (config, inputs, number of replicas) -> inputs. Before this worker connects to the others.
    change_inputs: Callable[[Config, Inputs, int], Inputs] = lambda config, inputs, num_replicas: inputs
    # (config, cluster, model) -> lines for the log. Before the model is called.
    change_model: Callable[[Config, Cluster, keras.Model], Iterable[str]] = lambda config, cluster, model: ()
    # (config, cluster, model) -> whether XLA can compile the forward and backward pass.
    compiles: Callable[[Config, Cluster, keras.Model], bool] = lambda config, cluster, model: True
    # (run) -> run. After everything else is built.
    apply: Callable[[Run], Run] = lambda run: run
    # (run, report) -> what the feature does between executions.
    loop_actions: Callable[[Run, Reporter], Iterable[LoopAction]] = lambda run, report: ()


# In the order in which they change a run.
ALL = (
    Feature(find_errors=recompute.find_errors, change_model=recompute.change_model, compiles=recompute.compiles),
    Feature(change_model=batch_norm.change_model, compiles=batch_norm.compiles, apply=batch_norm.apply),
    Feature(find_errors=callbacks.find_errors, change_inputs=callbacks.change_inputs, apply=callbacks.apply),
    Feature(find_errors=profile.find_errors, loop_actions=profile.loop_actions),
    Feature(loop_actions=replica_check.loop_actions),
    Feature(find_errors=nonfinite.find_errors, apply=nonfinite.apply, loop_actions=nonfinite.loop_actions),
    Feature(
        find_errors=virtual_replicas.find_errors,
        change_inputs=virtual_replicas.change_inputs,
        compiles=virtual_replicas.compiles,
        apply=virtual_replicas.apply,
    ),
)


def validate_config(config: Config) -> None:
    """Checks a config and the options of all features; a ValueError lists each wrong field with what is allowed."""
    validate.validate(config, lambda: [line for feature in ALL for line in feature.find_errors(config)])
