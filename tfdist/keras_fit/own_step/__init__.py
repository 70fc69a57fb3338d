"""Models that override `train_step` or `test_step`: each replica runs the user's step on its shard.

objective.py        an Objective whose step is the user's
discover.py         what a step applies and returns, found by tracing it once without effect
eager_steps.py      compile(run_eagerly=True), of any model
replica_step.py     the step that a replica is tracing: its shard, how it applies gradients; `tfdist.all_gather`
own_loop.py         `tfdist.step` and `tfdist.batches`: a loop without `fit`; `train_on_batch`
explain.py          errors and notes about a step, with the line of the script
"""
