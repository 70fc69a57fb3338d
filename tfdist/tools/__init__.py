"""Commands other than training: `python -m tfdist doctor`, `prepare`, `batch_size`, `scaling` and others.

Each is a module with `add_flags(parser)` and `main(args)`, listed in tfdist/__main__.py, which imports it and prints
its ValueError or OSError as one message. Imports every package but keras_fit and zoo. measure.py times steps and
all-reduces; child_runs.py trains in child processes; tables.py writes tables; pictures/ draws. Commands that teach,
`course`, `models`, `all_reduce`, `parallel_mistakes`, `trajectories`, `local_sgd` and `asynchronous`, are in
configs/laboratory/.
"""
