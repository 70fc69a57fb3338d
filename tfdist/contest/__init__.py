"""What `python -m tfdist.benchmark` lets compete: tfdist's own loop, pipelines and sums, and honest baselines."""
