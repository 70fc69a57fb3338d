"""The training and evaluation streams: a pure function of (seed, epoch, position), with no state to save.

    order.py       position in the epoch -> example, by a permutation that is computed, not stored
    stream.py      one worker's shard of each batch: order, read, prepare
    description.py how examples are prepared, for the log and for the exported model
    read_ahead.py  how many elements are read ahead, by their bytes
    cache.py       cached examples, in memory or on a local disk
    in_memory.py   arrays in host memory, for the cache and for the zoo's sources
    device_part.py the last part of preprocessing, on the device
    inspection.py  where NaN and infinite values are in the examples of some steps
    autograph.py   AutoGraph for users' functions only

Independent of the cluster. Imports config and report.
"""
