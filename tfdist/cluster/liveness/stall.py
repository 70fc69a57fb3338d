"""Detects a worker that waits too long for a step that does not end. Imports no TensorFlow."""

from tfdist.cluster.liveness import peer_loss
from tfdist.cluster.liveness.peer_loss import HeartbeatMonitor


def describe_stall(monitor: HeartbeatMonitor, now: float) -> str:
    """Returns a message if this worker has not completed an execution in time; "" otherwise.

    The timer starts with the end of the previous execution; before the first one, with the first call that waits for
    all workers. Time in which any worker is in a block of `pause_timers` does not count. If there is only one worker,
    its time outside of these calls does not count either: nobody waits for it, and it may be in a notebook or in a
    debugger.
    """
    options, name = monitor.options, peer_loss.worker_name(monitor, monitor.rank)
    collective, last = monitor.own.collective, monitor.own.last_execution
    if last is not None and len(monitor.members) == 1:
        last = None if collective is None else max(last, collective[1])
    if last is not None and options.stall_seconds:
        seconds = now - max(last, monitor.own.last_pause)
        if seconds > options.stall_seconds:
            return f"{name} has not completed a step for {seconds:.1f} s (last step: {monitor.own.step})"
    elif collective is not None and not monitor.own.started and options.first_stall_seconds:
        seconds = now - max(collective[1], monitor.own.last_pause)
        if seconds > options.first_stall_seconds:
            whom = "for all workers " if len(monitor.members) > 1 else ""
            return (
                f"{name} has waited {whom}for {seconds:.1f} s, in {collective[0]}, and no execution has "
                "ended yet (config.cluster.first_stall_seconds)"
            )
    return ""
