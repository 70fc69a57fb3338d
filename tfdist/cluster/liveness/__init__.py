"""Detects workers that die, hang or become unreachable. Without TensorFlow.

heartbeat.py is the thread that watches a run, and sends heartbeats; peer_loss.py holds its state, and ends the process.
With several workers: connections.py receives heartbeats and finds silent ones; reachability.py checks connections;
startup_watchdog.py starts a process (startup_watchdog_process.py) that limits the time of TensorFlow's start, and
replies for a worker that is busy.

    connections.start(...) or, with one worker, heartbeat.start(...) -> HeartbeatMonitor
    peer_loss.name_loss, claim_exit, announce_failure when exiting
"""
