"""The control plane: a star, in which every worker talks to rank 0 only. Imports no TensorFlow.

wire.py: signed messages over one connection; keys.py: what signs them; listener.py: opens ports, and serves connections
with limits for senders that have not proven that they have the key. rendezvous.py: all workers connect and compare
their values before TensorFlow starts; decision.py: rank 0's decision, in words; single_worker.py: the only worker.
watchdog.py: a process of each worker that exchanges heartbeats with rank 0's, and ends a worker whose TensorFlow does
not start; peers.py: what it knows of the others. heartbeat_monitor.py: in the worker, stalls, and its end after a loss.
"""
