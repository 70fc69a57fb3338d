"""What the loop tells of a run, through the reporter.

report_run.py           opens the report of a run; its first and last lines
tensorboard_extras.py   the model's graph, histograms of the weights, a profile of some steps
"""
