"""Launchers: each module reads the variables of one launcher, or of some similar ones.

Pure functions, without TensorFlow. docs/launchers.md says where the variables are documented, and which launchers were
tried.
"""
