"""TensorBoard data besides scalars: the model's graph, histograms of the weights, a profile of some steps.

On the chief only: profiling two workers at the same time corrupts memory.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.report import tensorboard_events
from tfdist.report.reporter import Reporter
from tfdist.training import run as run_lib
from tfdist.training import triggers

_BUCKETS = 30


@dataclasses.dataclass(slots=True, kw_only=True)
class TensorBoardExtras:
    """Writes graph, histograms and profile of `config.report` between executions."""

    run: run_lib.Run
    report: Reporter
    # Whether `write_due` was called since the start.
    started: bool = False
    profiling: bool = False

    def boundaries(self, step: int) -> list[int]:
        """Returns the next steps after `step` at which an execution must end; the same on every worker."""
        options, steps_per_epoch = self.run.config.report, self.run.steps_per_epoch
        due = triggers.next_due(options.histograms, step, steps_per_epoch)
        first, last = options.profile or (0, 0)
        return [one for one in (due, first - 1, last) if one is not None and one > step]

    def write_due(self, step: int) -> None:
        """Writes what is due after `step`; called by every worker, at the start and after each execution."""
        run, options = self.run, self.run.config.report
        first, self.started = not self.started, True
        if not (run.cluster.is_chief and run.workdir is not None and options.tensorboard):
            if first and not options.tensorboard:
                self.report.warning(
                    "config.report.graph, histograms and profile are for TensorBoard, and have no effect with "
                    "config.report.tensorboard=False"
                )
            return
        if options.graph and step == 0 and not run.is_script:
            self.report.training_events(tensorboard_events.event_record(graph_def=graph(run)))
        wanted = triggers.is_ever_due(options.histograms)
        # After a resume, the histograms of this step were written already.
        due = triggers.is_due(options.histograms, step, run.steps_per_epoch) and not first
        if wanted and (step == 0 or due):
            arrays = checkpoint_format.snapshot(run.variables)
            weights = {name: array for name, array in arrays.items() if name.startswith("model/")}
            floats = {name: array for name, array in weights.items() if array.dtype.kind == "f"}
            self.report.training_events(histograms_record(step, floats))
        self._profile(step, *(options.profile or (0, 0)))

    def _profile(self, step: int, first: int, last: int) -> None:
        if self.profiling and not first - 1 <= step < last:
            self.close()
        elif not self.profiling and first - 1 <= step < last:
            try:
                folder = self.run.workdir / tensorboard_events.TENSORBOARD / tensorboard_events.TRAIN
                tf.profiler.experimental.start(str(folder))
                self.profiling = True
            except tf.errors.OpError as error:
                self.report.warning(f"The steps from {first} to {last} cannot be profiled: {error.message}")

    def close(self) -> None:
        """Ends and writes a profile that is being taken."""
        if self.profiling:
            self.profiling = False
            try:
                tf.profiler.experimental.stop()
            except tf.errors.OpError as error:
                self.report.warning(f"The profile cannot be written: {error.message}")


def graph(run: run_lib.Run) -> bytes:
    """Returns the evaluation graph of the model and its objective: a serialised GraphDef.

    Its inputs have the names of the batch; all but the model is in the scope "objective".
    """
    objective = run.objective

    def forward(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return objective.function(objective.model, batch, training=False)

    spec = {
        name: tf.TensorSpec(one.shape, one.dtype, name) for name, one in run.feed.training(0, 1).element_spec.items()
    }
    with run.cluster.scope():
        traced = tf.function(forward, input_signature=[spec], autograph=False).get_concrete_function()
    graph_def = traced.graph.as_graph_def()
    inputs = {tensor.op.name for tensor in traced.graph.inputs}
    _move_to_scope(graph_def, "objective", inputs, re.compile(rf"{re.escape(objective.model.name)}(_\d+)?/"))
    return graph_def.SerializeToString()


def _move_to_scope(graph_def: Any, scope: str, inputs: set[str], others: re.Pattern[str]) -> None:
    """Renames the nodes of a GraphDef to `scope`/name, except `inputs` and those whose name starts with `others`."""
    moved = [node.name for node in graph_def.node if node.name not in inputs and not others.match(node.name)]
    new = {name: f"{scope}/{name}" for name in moved}
    for node in graph_def.node:
        node.name = new.get(node.name, node.name)
        for index, name in enumerate(node.input):  # "name", "name:1", or "^name" for a control dependency.
            bare = name.lstrip("^").partition(":")[0]
            node.input[index] = name.replace(bare, new.get(bare, bare), 1)
        places = node.attr["_class"].list.s if "_class" in node.attr else []
        for index, place in enumerate(places):  # b"loc:@name": on the device of that node.
            name = place.decode().removeprefix("loc:@")
            places[index] = f"loc:@{new.get(name, name)}".encode()


def histograms_record(step: int, arrays: Mapping[str, Any]) -> bytes:
    """Returns the record of one histogram per array of `arrays`, tag -> NumPy array of floats, at `step`.

    Non-finite values are skipped, and so are arrays without finite values.
    """
    from tensorboard.compat.proto import histogram_pb2, summary_pb2

    values = []
    for tag, array in arrays.items():
        flat = np.asarray(array, np.float64).ravel()
        flat = flat[np.isfinite(flat)]
        if flat.size:
            counts, edges = np.histogram(flat, bins=_BUCKETS)
            histogram = histogram_pb2.HistogramProto(
                min=flat.min(), max=flat.max(), num=flat.size, sum=flat.sum(), sum_squares=(flat**2).sum()
            )
            # In TensorBoard a bucket starts at the limit of the previous one; the first bucket is empty.
            histogram.bucket_limit.extend(edges)
            histogram.bucket.extend([0, *counts])
            values.append(summary_pb2.Summary.Value(tag=tag, histo=histogram))
    return tensorboard_events.event_record(step=step, summary={"value": values})
