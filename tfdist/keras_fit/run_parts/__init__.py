"""What a run of a compiled model is made of, beside its model; `keras_fit/setup.py` puts it together.

config.py             the config: what a workdir says of the run, and what the loop reads
feed.py               the input, of the adapters of its data
virtual_replicas.py   losses and metrics with the same bits on any number of replicas
"""
