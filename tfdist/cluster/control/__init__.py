"""The control plane: a star, in which every worker talks to rank 0 only. Imports no TensorFlow.

wire.py: signed messages over one connection; keys.py: what signs them; listener.py: opens ports, and serves connections
with limits for senders that have not proven that they have the key. rendezvous.py: all workers connect and compare
their values before TensorFlow starts; decision.py: rank 0's decision, in words; alone.py: the only worker of a run.
"""
