"""Commands that compare runs or networks: scaling, trajectories, mistakes and models.

results.py has the results of a scaling study as data, published.py those that courses print; ring.py is an all-reduce
by hand, for `tfdist all_reduce --ring`. The trainings run in
processes of their own (tools/child_runs.py); pictures/ draws what they found.
"""
