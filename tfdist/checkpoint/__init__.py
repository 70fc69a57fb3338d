"""Checkpoints that are complete or absent: written to a temporary name, hashed, renamed.

    format.py         writes, verifies and reads one checkpoint
    directory.py      paths, saved steps, the best step; no TensorFlow
    async_writer.py   AsyncCheckpointer: writes in a thread while training continues
    restore.py        restores variables: the chief reads a checkpoint and broadcasts it
    workdir_lock.py   one run per workdir; no TensorFlow
    export.py         the final model in Keras' format

Imports config and report.
"""
