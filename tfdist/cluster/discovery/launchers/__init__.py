"""Launchers: each module reads the variables of one launcher, or of some similar ones.

They change nothing, and import no TensorFlow. docs/launchers.md says where the variables are documented, and which
launchers were tried.
"""
