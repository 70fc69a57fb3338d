"""Launchers besides Slurm, MPI, PBS and TF_CONFIG: each module reads the variables of one, and is imported if found.

`resolve(env, port_base=, port_count=) -> WorkerSpec` in each; worker_specs.py makes the result. Pure functions, without
TensorFlow. docs/launchers.md says where the variables are documented, and which launchers were run.
"""
