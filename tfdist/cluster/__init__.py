"""The workers of a run: finds and connects them, detects lost ones, and stops processes.

    connect(options) -> Cluster   strategy.py: one tf.distribute strategy per process
    Cluster                       cluster.py: scope, distribute, broadcast, all_gather, barrier
    interruption, process_exit    stop requests from signals; exit codes; error_report: messages for errors
    devices/                      GPUs of the host, their software; dtypes of collectives
    discovery/                    Slurm, MPI, PBS and TF_CONFIG -> WorkerSpec
    control/                      rendezvous, heartbeats, watchdogs: missing, lost and stalled workers, by name
    several_workers/              the start of several workers: strategy, broadcasts, the ring over TCP

The only package that reads launchers' variables. Imports config.
"""
