"""The training loop, the training step, and what belongs to them.

    setup.build_run(config, workdir) -> Run    checks the config, connects the workers, builds the model
    loop.train(run) -> exit code               the loop; evaluation/: evaluation in the loop, or of a checkpoint
    api.py                                     what the package for scripts may use of training
    step/                                      one training step on a replica; the gradients' all-reduce
    features/                                  optional features of a run, one file each: callbacks, checks, ...

Imports config, report, cluster, data and checkpoint.
"""
