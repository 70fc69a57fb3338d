"""The training loop, the step, and what belongs to them.

    setup.build_run(config, workdir) -> Run    checks the config, connects the workers, builds the model
    loop.train(run) -> exit code               the loop; evaluation/: evaluates it, or a checkpoint
    api.py                                     what other packages may use of all this
    step/                                      one training step on a replica; the gradients' all-reduce
    features/                                  what a run may have besides, one file each: callbacks, checks, ...

Imports config, report, cluster, data and checkpoint.
"""
