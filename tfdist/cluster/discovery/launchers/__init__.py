"""Launchers: each module reads the variables of one, and is imported if they are found.

`resolve(env, port_base=, port_count=) -> WorkerSpec` in each but tf_config.py, mpi.py, slurm.py and pbs.py, which find
more than a worker; worker_specs.py makes the result of most. Pure functions, without TensorFlow. docs/launchers.md says
where the variables are documented, and which launchers were run.
"""
