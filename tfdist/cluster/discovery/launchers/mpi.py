"""Variables of MPI launchers -> `WorkerSpec`. Imports no TensorFlow."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.cluster.discovery import hostlist, variables
from tfdist.cluster.discovery.launchers import by_ranks
from tfdist.cluster.discovery.worker_spec import WorkerSpec

# Rank, number of ranks, rank on this host, ranks on this host; of Open MPI, MVAPICH2, MPICH and Intel MPI, Cray PALS.
_MPIRUN_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE"),
)
_PMI_VARIABLES = ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
# An id of the mpirun, the same on all its ranks.
_MPI_JOB_VARIABLES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "I_MPI_HYDRA_UUID", "PALS_APID")
_BATCH_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "OAR_JOB_ID")


def mpirun_variables(env: Mapping[str, str]) -> tuple[str, ...] | None:
    """Returns the names of the variables of the mpirun or mpiexec that started this process; None: there was none.

    PMI_* are not sufficient: Slurm sets them too. On HPE Cray EX its steps also have the variables of PALS, with the
    step as PALS_APID (src/plugins/mpi/cray_shasta/mpi_cray_shasta.c).
    """
    if "PALS_APID" in env and env["PALS_APID"] == f"{env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}":
        env = {name: value for name, value in env.items() if not name.startswith("PALS_")}
    return next((names for names in _MPIRUN_VARIABLES if any("PMI_" not in n and n in env for n in names)), None)


def pmi_variables(env: Mapping[str, str]) -> tuple[str, ...] | None:
    """Returns the names of the variables of an MPI launcher that uses only PMI; None: there was none."""
    if "PMI_RANK" in env or "PMI_SIZE" in env:
        return _PMI_VARIABLES
    # PMIx provides the number of ranks only over a socket; the error then lists Open MPI's names.
    return _MPIRUN_VARIABLES[0] if "PMIX_RANK" in env else None


def _launcher_pid(variable: str) -> int:
    """Returns the pid of the launcher: the nearest ancestor process that does not have `variable` in its environment.

    Shell scripts between the launcher and a rank have the variable.
    """
    pid = os.getppid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while f"\0{variable}=".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def resolve(env: Mapping[str, str], names: Sequence[str], **ports: int) -> WorkerSpec:
    """Returns the worker spec of this rank.

    On one host, all addresses are known. On several hosts, MPI launchers do not provide the hosts of the ranks:
    `addresses` is empty, and `chiefs` lists where rank 0 may be: TFDIST_CHIEF ("host" or "host:port") if set,
    else the first host of the batch system's list, or mpirun's host.

    Args:
        names: the variables that hold rank, number of ranks, rank on this host, ranks on this host.
    """
    variables.need(env, names, "An MPI launcher started this process")
    on_one_host = variables.integer(env, names[3]) >= variables.integer(env, names[1])
    job = next((env[name] for name in _MPI_JOB_VARIABLES if env.get(name)), None)
    if job is None:
        # On one host, mpirun or its daemon starts all ranks. On several hosts, ranks have only the batch job in common.
        batch = next((env[name] for name in _BATCH_JOB_VARIABLES if env.get(name)), "")
        job = f"{batch}/{_launcher_pid(names[2])}" if on_one_host else batch or "mpi"
    chiefs = () if on_one_host or env.get("TFDIST_CHIEF") else _first_hosts(env)
    return by_ranks.make_spec("mpi", env, names, chiefs=chiefs, job=job, **ports)


def _first_hosts(env: Mapping[str, str]) -> list[str]:
    found = []
    with contextlib.suppress(OSError):  # Not set, or a file that exists on the first host only.
        found += Path(env.get("PBS_NODEFILE", "")).read_text().split()[:1]
    if env.get("SLURM_JOB_NODELIST"):
        found += hostlist.expand_hostlist(env["SLURM_JOB_NODELIST"])[:1]
    # For example 1400176640.0;tcp://192.0.2.2,10.0.0.2:39317;tcp6://[fd00::2]:46011
    for uri in env.get("OMPI_MCA_orte_hnp_uri", "").split(";")[1:]:
        found += uri.partition("://")[2].rpartition(":")[0].strip("[]").split(",")
    if not found:
        raise ValueError(
            "mpirun started workers on several hosts, and the host of rank 0 is unknown. Set TFDIST_CHIEF to it and "
            "export it: mpirun -x TFDIST_CHIEF=<host> (Open MPI) or -genv TFDIST_CHIEF <host>."
        )
    return found
