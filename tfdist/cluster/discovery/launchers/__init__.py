"""Launchers: each module reads the variables of one, or of some that are alike, and is imported if they are found.

Pure functions, without TensorFlow. docs/launchers.md says where the variables are documented, and which launchers were
run.
"""
