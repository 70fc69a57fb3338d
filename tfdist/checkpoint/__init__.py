"""Checkpoints that are complete or absent: written aside, hashed, renamed.

    format.py         write, verify and restore one checkpoint
    directory.py      the steps that are saved, and the best of them; without TensorFlow
    async_writer.py   AsyncCheckpointer: writes in a thread while training continues
    export.py         the final model in Keras' own format

Imports config and report.
"""
