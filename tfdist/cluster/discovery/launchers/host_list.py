"""One process on each host of an OAR or LSF job, started by the user: oarsh, taktuk, blaunch, pdsh or ssh.

With TFDIST_ONE_PER_HOST=1 the rank is the position of this host in OAR_NODEFILE (a line for each core;
https://oar.imag.fr/docs/latest/user/commands/oarsub.html) or in LSB_MCPU_HOSTS ("host slots host slots ...", IBM's
"Environment variables set for job execution"). These programs set no rank, and not all pass variables on: the command
on each host must set them.
"""

import socket
from collections.abc import Mapping

from tfdist.cluster.discovery import variables
from tfdist.cluster.discovery.launchers import jsrun, worker_specs
from tfdist.cluster.discovery.worker_spec import WorkerSpec

_VARIABLES = ("OAR_NODEFILE", "LSB_MCPU_HOSTS", "LSB_DJOB_RANKFILE")


def hosts(env: Mapping[str, str]) -> list[str]:
    """Returns the hosts of an OAR or LSF job, each once; [] if no variable has them."""
    try:
        with open(env.get("OAR_NODEFILE", "")) as lines:
            return list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    except OSError:
        return jsrun.hosts(env)


def resolve(env: Mapping[str, str], *, port_base: int, port_count: int, host: str = "") -> WorkerSpec:
    """Returns the worker spec of this host.

    Args:
        env: the environment.
        port_base: ports are in [port_base, port_base + port_count).
        port_count: see port_base.
        host: the name of this host; "": the system's.

    Raises:
        ValueError: there is no list of hosts, or this host is not in it.
    """
    found, host = hosts(env), host or socket.gethostname()
    short = [name.partition(".")[0] for name in found]
    if host not in found and host.partition(".")[0] not in short:
        raise ValueError(
            f"TFDIST_ONE_PER_HOST=1, but this host, {host}, is not in the job's list of hosts: "
            f"{', '.join(found) or 'none'}. "
            "Pass the variables to each process, and start one on each host. "
            f"{variables.say_received(env, _VARIABLES)}"
        )
    return worker_specs.of_hosts(
        "host list",
        env,
        rank=found.index(host) if host in found else short.index(host.partition(".")[0]),
        hosts=found,
        job=env.get("OAR_JOB_ID", env.get("LSB_JOBID", "")),
        port_base=port_base,
        port_count=port_count,
        received=_VARIABLES,
    )


def forgotten(env: Mapping[str, str]) -> str:
    """Returns a warning if this process is alone in an OAR or LSF job of several hosts, else ""."""
    found = hosts(env) if env.get("OAR_JOB_ID") or env.get("LSB_JOBID") else []
    if len(found) < 2:
        return ""
    kind = "OAR" if env.get("OAR_JOB_ID") else "LSF"
    return (
        f"This {kind} job has {len(found)} hosts, but this process was started on one of them and trains alone. Start "
        "it on all: with mpirun, or as docs/launchers.md says."
    )
