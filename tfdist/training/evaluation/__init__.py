"""Evaluations: in the loop, of a saved checkpoint, and of a script whose values are returned."""
