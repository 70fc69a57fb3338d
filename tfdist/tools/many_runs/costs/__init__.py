"""What the time of runs was spent on: `tfdist cost`, which is cost.py. Imports no TensorFlow.

bills.py adds up the starts of a run, whose lines report/ledger.py writes; accounting.py asks Slurm about its jobs.
"""
