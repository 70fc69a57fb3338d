"""Connects the workers of a script, and ends all workers after an error on one.

`connect` sets `sys.excepthook` for the rest of the script: an error between two calls of `fit` would otherwise leave
the other workers waiting. With one worker, errors are printed in the same form. With several workers, `connect` also
makes Keras' own `fit`, `evaluate` and `predict` raise for models made in the cluster's scope.
"""

import atexit
import signal
import sys
import types

import keras

from tfdist import config as config_lib
from tfdist.cluster import collective_guard, error_report, process_exit, strategy
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.collective_guard import ScriptCluster
from tfdist.cluster.devices import eager_context
from tfdist.config import closed_streams
from tfdist.keras_fit import messages
from tfdist.keras_fit.script import script_state
from tfdist.training import api as trainer

# What `connect` returned.
_connected: Cluster | None = None


def current_cluster() -> Cluster | None:
    """Returns what `connect` returned in this process; None: it has not been called."""
    return _connected


def connect(options: config_lib.ClusterOptions | None = None, *, seed: int | None = 0) -> ScriptCluster:
    """Connects to all other workers of this job. A script must call it first.

    The script is started once per worker, by Slurm, MPI, TF_CONFIG or by hand; see `strategy.connect`. At the end of
    the script the workers wait for each other; an error on one worker ends all.

    Args:
        options: ports, deadlines, and the number of simulated devices; None: the defaults.
        seed: passed to `keras.utils.set_random_seed` on every worker, unless TensorFlow has a global seed: shuffled
            datasets and dropout must be the same on all workers. None: the script sets a seed.

    Returns:
        The cluster. Create and compile models in its `scope()`.

    Raises:
        TimeoutError, ValueError, OSError: as in `strategy.connect`; also ValueError if Keras has another backend, or
            `tfdist.run` has connected the workers.
    """
    global _connected
    if script_state.in_script():
        raise ValueError(
            "The script calls tfdist.connect, which tfdist.run has done already: start it without tfdist.run, as "
            "docs/scripts.md shows, or remove tfdist's calls from it."
        )
    closed_streams.reopen()
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            f"Keras needs the backend tensorflow. Received: {keras.config.backend()!r}. Import tfdist before keras, "
            "or set KERAS_BACKEND=tensorflow."
        )
    trainer.adopt_remat_scopes()
    _connected = cluster = collective_guard.for_script(strategy.connect(options))
    messages.log_only_on_chief(cluster.is_chief)
    if seed is not None and eager_context.global_seed() is None:
        keras.utils.set_random_seed(seed)
    if cluster.num_workers > 1:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TensorFlow's handler would ignore the signal.
        atexit.register(cluster.leave)
        sys.excepthook = _end_all_workers
        collective_guard.reject_keras_methods(cluster.strategy)
    else:
        sys.excepthook = _print_error
    return cluster


def _print_error(kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
    error_report.report_exception(error)


def _end_all_workers(kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
    def fail() -> int:
        raise error

    process_exit.run_and_exit(fail)
