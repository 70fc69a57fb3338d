"""The training and evaluation streams: a pure function of (seed, epoch, position), with no state to save.

    feed.py              the input of a run, and its numbers of examples and steps
    inputs.py            the functions and sources that a config names, checked before TensorFlow runs; the sizes
    order.py, stream.py  the default: position in the epoch -> example; one worker's shard of each batch
    textbook.py          shuffle, batch and experimental_distribute_dataset
    pipelines.py         makes one of the two for a config; fixed_shards.py: example i always with worker i mod W
    read_ahead.py        how many elements are read ahead, by their bytes
    cache.py             cached examples, in memory (in_memory.py) or on a local disk
    inspection.py        finds NaN and infinite values; description.py: describes the output of prepare
    autograph.py         AutoGraph for users' functions only; stateful_ops.py: what a resumed run may not repeat

Independent of the cluster. Imports config and report.
"""
