"""What the package for scripts may use of training: a run, the loop, parts of a step, functions that adapt a model.

Nothing else imports this module: other packages, and modules of this one, import the modules that they need.
"""

from tfdist.training.consistency.comparison import Comparison, ReplicaMismatchError
from tfdist.training.evaluation.evaluate import evaluate
from tfdist.training.features.callback_runner import CallbackRunner
from tfdist.training.loop import train
from tfdist.training.opening import make_silent_services
from tfdist.training.pruned import compute as compute_pruned
from tfdist.training.run import Log, Run, replica_shard
from tfdist.training.state import TrainingState
from tfdist.training.step.build_context import build_context, compiles_with_xla, prepare_optimizer, restore_methods
from tfdist.training.step.collectives import (
    call_once,
    cond_on_all_replicas,
    num_replicas,
    reduce_context,
    sum_differentiable,
)
from tfdist.training.step.context import StepContext
from tfdist.training.step.layers.model_layers import all_layers as layers_of_all_depths
from tfdist.training.step.layers.model_layers import statistics as find_statistics
from tfdist.training.step.layers.normalization import shard_present, synchronized_layers
from tfdist.training.step.layers.remat_scopes import adopt as adopt_remat_scopes
from tfdist.training.step.objective import Objective, ShardResult
from tfdist.training.step.optimizer import start_averages, step_count
from tfdist.training.step.random_numbers.repeated_passes import as_replica, draws_of_branch
from tfdist.training.step.random_numbers.seed_generators import (
    advance_in_block,
    begin_evaluation_pass,
    begin_forward_pass,
    make_stateless,
)
from tfdist.training.step.random_numbers.stateful_random import draw_statelessly as stateless_draws
from tfdist.training.step.train_step import add_to_totals, after_update, check_trainable
from tfdist.training.step.updates.gathered_rows import gather as gather_rows
from tfdist.training.step.updates.loss_scale import LossScale
from tfdist.training.step.updates.stages import scale as scale_gradients
from tfdist.training.step.updates.tables import Gradients, convert_in_fixed_order
from tfdist.training.step.updates.tables import select as select_rows
from tfdist.training.triggers import DueSteps
