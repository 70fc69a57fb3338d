"""Sweeps: one command that trains a config or a script with many values of its fields or flags.

`command` reads the command line, `space` the values; `validation` checks every run before one is started. `plan` is
what the workdir of a sweep says: its runs, and how each is started. `local` runs them on this machine, `array` as one
job array of Slurm, whose tasks are `task`. `ends` is how each run ended, `halving` which runs go on after an epoch, and
`proposals` what Optuna proposes.

Imports `tables`, `find` and `run_state` of the tools; config, report, checkpoint, cluster and launch; no TensorFlow.
"""
