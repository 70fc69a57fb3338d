"""Signed messages between the workers of a job, over TCP. Imports only the standard library.

keys.py: where a job's key comes from; channel.py: signed messages over one connection; listener.py: opens ports, and
serves connections with limits for senders that have not proven that they have the key.
"""
