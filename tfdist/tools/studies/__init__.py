"""Commands that train a config several times and compare the runs: scaling, trajectories and mistakes.

results.py has the results of a scaling study as data, published.py those that courses print. The trainings run in
processes of their own (tools/child_runs.py); pictures/ draws what they found.
"""
