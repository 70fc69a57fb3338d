"""Connects the workers of a script, and ends all workers after an error on one.

`connect` sets `sys.excepthook` for the rest of the script: an error between two calls of `fit` would otherwise leave
the other workers waiting.
"""

import atexit
import signal
import sys
import types

import keras

from tfdist import config as config_lib
from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import process_exit, strategy
from tfdist.cluster.cluster import Cluster


def connect(options: config_lib.Cluster | None = None, *, seed: int | None = 0) -> Cluster:
    """Connects to all other workers of this job: the first call of a script.

    The script is started once per worker, by Slurm, MPI, TF_CONFIG or by hand; see `strategy.connect`. At the end of
    the script the workers wait for each other; an error on one worker ends all.

    Args:
        options: ports, deadlines, and the number of simulated devices; None: the defaults.
        seed: passed to `keras.utils.set_random_seed` on every worker, unless TensorFlow has a global seed: shuffled
            datasets and dropout must be the same on all workers. None: the script sets a seed.

    Returns:
        The cluster. Create and compile models in its `scope()`.

    Raises:
        TimeoutError, ValueError, OSError: as `strategy.connect`.
    """
    cluster = strategy.connect(options)
    if seed is not None and strategy.global_seed() is None:
        keras.utils.set_random_seed(seed)
    if cluster.num_workers > 1:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TensorFlow's handler would ignore it.
        atexit.register(cluster_lib.leave, cluster)
        sys.excepthook = _end_all_workers
    return cluster


def _end_all_workers(kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
    del kind, traceback

    def fail() -> int:
        raise error

    process_exit.run_and_exit(fail)
