"""Commands that compare runs or networks: scaling, trajectories, mistakes and models.

results.py has the results of a scaling study as data, published.py those that courses print; ring.py is an all-reduce
by hand, for `tfdist all_reduce --ring`; by_hand.py is data-parallel training in NumPy, for mistakes and stages.
Trainings run in child processes (tools/child_runs.py); pictures/ draws their results.
"""
