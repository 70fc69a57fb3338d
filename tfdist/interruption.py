"""Signals that ask a run to stop: remembered here, agreed on by all workers at the end of a call."""

import dataclasses
import signal
import types

# What a run that was asked to stop exits with after saving: sysexits.h's EX_TEMPFAIL, "try again later".
EXIT_STOPPED = 75
# What a worker exits with when another worker was lost under it: all workers have to be started again.
EXIT_PEER_LOST = 76

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclasses.dataclass(slots=True)
class StopRequest:
    """Which signal this worker has received, if any."""

    signal_name: str | None = None


def listen() -> StopRequest:
    """Begins to remember SIGTERM, SIGINT and SIGUSR1 instead of dying of them; a second SIGINT ends the process.

    To be called after the strategy is made, which installs a SIGTERM handler of its own.
    """
    request = StopRequest()

    def remember(number: int, frame: types.FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and request.signal_name == "SIGINT":
            raise KeyboardInterrupt
        request.signal_name = signal.Signals(number).name

    for number in _SIGNALS:
        signal.signal(number, remember)
    return request
