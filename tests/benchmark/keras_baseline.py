"""Keras' `fit` as a peer, on one worker: with several, Keras 3 fails under MultiWorkerMirroredStrategy."""

import queue
import threading

import keras

from tests.benchmark import baselines
from tests.benchmark.workloads import Workload
from tfdist import config as config_lib


def fit(workload: Workload, config: config_lib.Config, *, steps_per_execution: int, xla: bool) -> baselines.Runner:
    """One long `fit` with the pipeline and layers of the tutorials; each call of the result runs a number of its steps.

    Args:
        workload: the workload.
        config: its config.
        steps_per_execution: argument of `compile`; numbers of steps are rounded up to its multiples.
        xla: compile the step by XLA: Keras' default on GPUs, and slower on CPUs.
    """
    keras.config.set_dtype_policy(baselines.POLICIES[config.train.precision])
    model = baselines.keras_model(config)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps_per_execution,
        jit_compile=xla,
    )
    dataset = baselines.textbook_dataset(*baselines.images(config), workload.pad, config.data.batch_size)
    steps_per_epoch = workload.examples // config.data.batch_size // steps_per_execution * steps_per_execution
    gate = _Gate(steps_per_execution)

    def train() -> None:
        try:
            model.fit(dataset.repeat(), epochs=1_000_000, steps_per_epoch=steps_per_epoch, verbose=0, callbacks=[gate])
        except BaseException as error:
            gate.reached.put(error)

    threading.Thread(target=train, daemon=True).start()
    gate.wait()

    def run(steps: int) -> None:
        gate.allowed.put(steps)
        gate.wait()

    return run


class _Gate(keras.callbacks.Callback):
    """Blocks `fit` before a batch until more steps are allowed; Keras would wait for the outputs in other hooks."""

    def __init__(self, steps: int):
        super().__init__()
        self.allowed: queue.Queue[int] = queue.Queue()
        self.reached: queue.Queue[BaseException | None] = queue.Queue()
        self._steps = steps
        self._left = 0

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Blocks until steps are left, and counts those of an execution."""
        del batch, logs
        if self._left <= 0:
            self.reached.put(None)
            self._left = self.allowed.get()
        self._left -= self._steps

    def wait(self) -> None:
        """Waits until `fit` is blocked; raises its error if it failed."""
        error = self.reached.get()
        if error is not None:
            raise error
