"""The training and evaluation streams: a pure function of (seed, epoch, position), with no state to save.

    order.py       position in the epoch -> example, by a permutation that is computed, not stored
    stream.py      one worker's shard of each batch: order, read, prepare
    cache.py       examples kept in memory or on a local disk
    autograph.py   AutoGraph for users' functions only

Knows no cluster. Imports config and report.
"""
