"""What `python -m tfdist.tools.benchmark.__main__` lets compete: tfdist's own loop, pipelines and sums, and honest baselines."""
