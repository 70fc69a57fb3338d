"""Evaluation: in the loop, of a saved checkpoint, or for a script, to which the values are returned."""
