"""What TensorBoard shows besides scalars: the model's graph, the weights' histograms, a profile of chosen steps.

The chief alone looks: profilers of two workers at once corrupt memory.
"""

import dataclasses

import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.report import tensorboard_events
from tfdist.report.reporter import Reporter
from tfdist.training import run as run_lib
from tfdist.training import triggers


@dataclasses.dataclass(slots=True, kw_only=True)
class TensorBoardExtras:
    """Looks at the run between calls, as `config.report` says."""

    run: run_lib.Run
    report: Reporter
    looked: bool = False
    profiling: bool = False

    def boundaries(self, now: int) -> list[int]:
        """The next steps after `now` at which a call must end; the same on every worker."""
        options, steps_per_epoch = self.run.config.report, self.run.steps_per_epoch
        due = triggers.next_due(options.histograms, now, steps_per_epoch)
        first, last = options.profile or (0, 0)
        return [step for step in (due, first - 1, last) if step is not None and step > now]

    def look(self, now: int) -> None:
        """Writes what is due after step `now`; every worker may call it, at the start and after each call."""
        run, options = self.run, self.run.config.report
        begins, self.looked = not self.looked, True
        if not (run.cluster.is_chief and run.workdir is not None and options.tensorboard):
            return
        if options.graph and now == 0 and not run.by_epochs:
            self.report.graph(graph(run))
        wanted = options.histograms.steps is not None or options.histograms.epochs is not None
        due = (
            triggers.is_due(options.histograms, now, run.steps_per_epoch) and not begins
        )  # It is there after a resume.
        if wanted and (now == 0 or due):
            arrays = checkpoint_format.snapshot(run.variables)
            weights = {name: array for name, array in arrays.items() if name.startswith("model/")}
            self.report.histograms(now, {name: array for name, array in weights.items() if array.dtype.kind == "f"})
        self._profile(now, *(options.profile or (0, 0)))

    def _profile(self, now: int, first: int, last: int) -> None:
        if self.profiling and not first - 1 <= now < last:
            self.close()
        elif not self.profiling and first - 1 <= now < last:
            try:
                tf.profiler.experimental.start(str(self.run.workdir / tensorboard_events.TENSORBOARD))
                self.profiling = True
            except tf.errors.OpError as error:
                self.report.warning(f"The steps from {first} to {last} cannot be profiled: {error.message}")

    def close(self) -> None:
        """Writes the profile that has begun."""
        if self.profiling:
            self.profiling = False
            try:
                tf.profiler.experimental.stop()
            except tf.errors.OpError as error:
                self.report.warning(f"The profile cannot be written: {error.message}")


def graph(run: run_lib.Run) -> bytes:
    """Returns the graph of the model and its objective, as evaluation runs them: a serialised GraphDef."""
    objective = run.objective

    def forward(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return objective.function(objective.model, batch, training=False)

    spec = run.training_data(0, 1).element_spec
    with run.cluster.scope():
        traced = tf.function(forward, input_signature=[spec], autograph=False).get_concrete_function()
    return traced.graph.as_graph_def().SerializeToString()
