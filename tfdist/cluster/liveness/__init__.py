"""Heartbeats, stalled steps, cut links, and a watchdog for TensorFlow's start: lost workers are named within seconds.

`heartbeat.start` returns the monitor of a running job. startup_watchdog.py limits the time of TensorFlow's start.
Without TensorFlow.
"""
