"""Detects workers that die, hang or become unreachable. Without TensorFlow.

heartbeat.py exchanges heartbeats; peer_loss.py holds the monitor's state and ends the process after a loss; stall.py
detects workers that wait too long; reachability.py checks connections; startup_watchdog.py starts a process
(startup_watchdog_process.py) that limits the time of TensorFlow's start, and replies for a worker that is busy.

    heartbeat.start(...) -> HeartbeatMonitor
    peer_loss.claim_exit_and_name_loss, claim_exit, announce_failure when exiting
"""
