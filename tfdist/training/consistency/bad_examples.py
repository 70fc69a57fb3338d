"""Errors of an execution that the data causes name the example."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfdist.cluster.liveness import peer_loss
from tfdist.config import specs
from tfdist.training.run import Run


@contextlib.contextmanager
def explain_errors(run: Run) -> Iterator[None]:
    """In the block, which runs executions, raises a ValueError that names the example if the data ends one."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError, tf.errors.NotFoundError) as error:
        peer_loss.claim_exit()  # The search for the example may outlast the other workers.
        raise specs.part("consistency.explain")(run, error) or error from None
