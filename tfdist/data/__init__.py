"""The training and evaluation streams: a pure function of (seed, epoch, position), with no state to save.

    feed.py              the input of a run, and its numbers of examples and steps
    inputs.py            the functions and sources that a config names, checked before TensorFlow runs; the sizes
    order.py, stream.py  position in the epoch -> example; one worker's shard of each batch
    pipelines.py         the default pipeline; fixed_shards.py, textbook.py: its alternatives
    cache.py             cached examples, in memory or on a local disk
    inspection.py        finds NaN and labels after an error; description.py: describes the output of prepare
    autograph.py         AutoGraph for users' functions only
    guard.py             finds effects of users' Python that no graph shows

Independent of the cluster. Imports config only.
"""
