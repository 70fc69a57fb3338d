"""The control plane: a star, in which every worker talks to rank 0 only. Imports no TensorFlow.

wire.py: signed messages over one connection; keys.py: the key that signs them; listener.py: opens ports and serves
connections, with limits for unauthenticated clients. rendezvous.py: all workers connect and compare their values before
TensorFlow starts; decision.py: rank 0's decision and its messages.
watchdog.py: a process beside each worker, which exchanges heartbeats with the watchdog process of rank 0, and kills a
worker whose TensorFlow does not start; peers.py: heartbeats and lost workers. heartbeat_monitor.py finds stalls of the
worker itself, and ends its process after another worker is lost.
"""
