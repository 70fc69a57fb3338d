"""Reads launchers' variables and derives ports from them, for the modules of launchers/. No TensorFlow."""

import zlib
from collections.abc import Iterable, Mapping, Sequence

# A job uses a block of consecutive ports, a multiple of this number: one per task on a host, one for heartbeats.
_PORTS_PER_JOB = 16


def need(env: Mapping[str, str], names: Sequence[str], why: str) -> None:
    """Raises a ValueError that lists each of `names` that is not set."""
    missing = [name for name in names if not env.get(name)]
    if missing:
        raise ValueError(
            f"{why}, but these variables are not set: {', '.join(missing)}. Pass the launcher's variables to the "
            f"process (a container or shell may have removed them). {say_received(env, names)}"
        )


def integer(env: Mapping[str, str], name: str) -> int:
    """Reads a non-negative integer; raises ValueError if it is not one."""
    if not env[name].isdecimal():
        raise ValueError(f"{name} must be a number. Received: {env[name]!r}")
    return int(env[name])


def say_received(env: Mapping[str, str], names: Sequence[str]) -> str:
    """Returns the end of a message: the variables among `names` that are set, with their values."""
    return "Received: " + ", ".join(f"{name}={env[name]}" for name in dict.fromkeys(names) if name in env)


def port_block(port_base: int, port_count: int, job: int, *, at_least: int) -> tuple[int, int]:
    """Returns the first port and the number of ports of a job; jobs with neighbouring numbers do not overlap."""
    if at_least > port_count:
        raise ValueError(
            f"config.cluster.port_count must be at least {at_least}, the tasks on one host. Received: {port_count}"
        )
    length = min(_PORTS_PER_JOB * -(-at_least // _PORTS_PER_JOB), port_count)
    return port_base + job % (port_count // length) * length, length


def hash_texts(texts: Iterable[str]) -> int:
    """Returns a hash of the texts below 2**32, the same in every process."""
    return zlib.crc32("\n".join(texts).encode())
