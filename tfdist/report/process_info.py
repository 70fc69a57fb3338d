"""How old this process is. Imports no TensorFlow."""

import time


def age(pid: int | None = None) -> float:
    """Returns the seconds since a process, by default this one, was started; psutil.NoSuchProcess: it has ended."""
    import psutil  # Some 20 ms, which a command without a run does not need.

    started = psutil.Process(pid).create_time()
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return time.time() - started
    # On Linux psutil adds the time of the boot, in whole seconds, to a precise time since the boot.
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (started - psutil.boot_time())
