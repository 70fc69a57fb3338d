"""What a run may have besides the path of every run: one file a feature, and `ALL`, the one list that names them.

A file holds the checks of the feature's options and what it does to a run: `Feature` says when each function is called.
Importing this package imports no TensorFlow; the files import in functions what needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfdist.config import validate
from tfdist.config.schema import Config
from tfdist.training.features import (
    callbacks,
    nonfinite,
    profile,
    recompute,
    replica_check,
    virtual_replicas,
)

if TYPE_CHECKING:
    import keras

    from tfdist.data.pipelines import Inputs
    from tfdist.report.reporter import Reporter
    from tfdist.training.loop_tools import Extra
    from tfdist.training.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The functions of a feature, in the order in which a run calls them; each does nothing by default."""

    # (config) -> what is wrong with the options, each as "train.field=value needs ...".
    refuse: Callable[[Config], Iterable[str]] = lambda config: ()
    # (config, inputs, number of replicas) -> inputs. Before this worker connects to the others.
    change_inputs: Callable[[Config, Inputs, int], Inputs] = lambda config, inputs, num_replicas: inputs
    # (config, model) -> lines for the log. Before the model is called.
    change_model: Callable[[Config, keras.Model], Iterable[str]] = lambda config, model: ()
    # (run) -> run. After everything else is built.
    apply: Callable[[Run], Run] = lambda run: run
    # (run, report) -> what it does between executions.
    extras: Callable[[Run, Reporter], Iterable[Extra]] = lambda run, report: ()


# In the order in which they change a run.
ALL = (
    Feature(refuse=recompute.refuse, change_model=recompute.change_model),
    Feature(refuse=callbacks.refuse, apply=callbacks.apply),
    Feature(refuse=profile.refuse, extras=profile.extras),
    Feature(extras=replica_check.extras),
    Feature(refuse=nonfinite.refuse, apply=nonfinite.apply, extras=nonfinite.extras),
    Feature(
        refuse=virtual_replicas.refuse,
        change_inputs=virtual_replicas.change_inputs,
        apply=virtual_replicas.apply,
        extras=virtual_replicas.extras,
    ),
)


def check(config: Config) -> None:
    """Checks a config and the options of all features; a ValueError lists each wrong field with what is allowed."""
    validate.validate(config, lambda: [line for feature in ALL for line in feature.refuse(config)])
