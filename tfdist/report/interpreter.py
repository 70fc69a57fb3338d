"""When the interpreter of this process started. tfdist imports it first.

A process may be older than its interpreter: a shell that runs `bash -c "pip install ... && python ..."` replaces itself
by its last command, which then has the start time of the shell. Imports no TensorFlow.
"""

import resource
import time

_IMPORTED = time.monotonic()
# The processor time of the interpreter, and before it of the shell, some milliseconds.
_USED_SECONDS = time.process_time()
# Whether a child had ended by then. An interpreter seldom has one so early; a shell has its other commands.
_HAD_CHILDREN = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt > 0


def age() -> float:
    """Returns the seconds since the interpreter of this process was started.

    It is the age of the process, unless a child of it had ended when tfdist was imported. Then it is the time since the
    import and the processor time until then, which is too little by what the process waited for before the import.
    """
    whole = process_age()
    return min(whole, time.monotonic() - _IMPORTED + _USED_SECONDS) if _HAD_CHILDREN else whole


def process_age(pid: int | None = None) -> float:
    """Returns the seconds since a process, by default this one, was started; psutil.NoSuchProcess: it has ended."""
    import psutil  # Some 20 ms, which a command without a run does not need.

    started = psutil.Process(pid).create_time()
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return time.time() - started
    # On Linux psutil adds the time of the boot, in whole seconds, to a precise time since the boot.
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (started - psutil.boot_time())
