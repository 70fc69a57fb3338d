"""Detects workers that die, hang or become unreachable. Without TensorFlow.

heartbeat.py exchanges heartbeats; peer_loss.py holds the monitor's state and ends the process after a loss;
reachability.py checks connections; startup_watchdog.py limits the time of TensorFlow's start, with a process
(startup_watchdog_process.py), because Python threads do not run then.
    heartbeat.start(...) -> HeartbeatMonitor     peer_loss.lost_peer, claim_exit, announce_failure when exiting
"""
