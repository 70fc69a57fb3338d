"""`python -m tests.benchmark`: tfdist next to the floor, the textbook loop, Keras `fit` and PyTorch DDP.

__main__.py has the flags; sections.py the tables; rounds.py starts processes of worker.py and measures them in turn;
cases.py names what such a process runs: baselines.py, keras_baseline.py, input_pipelines.py.
"""
