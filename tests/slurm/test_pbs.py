"""Places of workers under PBS, from dictionaries as PBS sets them for what pbsdsh starts, and for the job's script."""

import pytest

from tfdist.cluster.discovery import environment
from tfdist.launch import local_workers

PORTS = {"port_base": 10000, "port_count": 10000}


def task(nodefile, node, number=None, **more):
    """The environment of a task on host `node` of the job; task 1 is the job's script."""
    return {
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": "4711.isrv1",
        "PBS_NODENUM": str(node),
        "PBS_TASKNUM": str(2 + node if number is None else number),
        "PBS_NODEFILE": str(nodefile),
    } | more


@pytest.fixture
def nodefile(tmp_path):
    path = tmp_path / "nodes"
    path.write_text("cn9\ncn9\ncn10\ncn10\ncn1\ncn1\n")
    return path


def test_pbsdsh_starts_a_worker_on_each_host_in_the_order_of_the_node_file(nodefile):
    places = [environment.resolve(task(nodefile, node), **PORTS) for node in range(3)]
    assert [(place.launcher, place.rank, place.num_workers) for place in places] == [("pbs", n, 3) for n in range(3)]
    assert len({place.addresses for place in places}) == 1 and len({place.port for place in places}) == 1
    port = places[0].port
    assert places[0].addresses == (f"cn9:{port}", f"cn10:{port}", f"cn1:{port}") and 10000 <= port < 20000
    assert places[0].heartbeat_port == port + 1
    other = environment.resolve(task(nodefile, 0, PBS_JOBID="4712.isrv1"), **PORTS)
    assert other.port != port and other.job != places[0].job
    with pytest.raises(ValueError, match="this is already process 0 of 3, started by pbs"):
        local_workers.check_single_process(task(nodefile, 0))


def test_the_script_of_a_job_is_a_single_worker_and_prints_it(nodefile):
    place = environment.resolve(task(nodefile, 0, number=1), **PORTS)
    assert place.launcher == "local" and place.num_workers == 1
    assert "PBS job 4711.isrv1 has slots for 6 ranks" in place.note and "Prefix the command with mpirun" in place.note
    nodefile.write_text("cn9\n")
    assert environment.resolve(task(nodefile, 0, number=1), **PORTS).note == ""


def test_mpirun_and_slurm_come_before_pbs(nodefile):
    ranks = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    ranks |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    place = environment.resolve(task(nodefile, 1, **ranks), **PORTS)
    assert place.launcher == "mpi" and place.chiefs == (f"cn9:{place.port}",)


def test_missing_and_wrong_values_are_named(nodefile):
    without = {name: value for name, value in task(nodefile, 0).items() if name != "PBS_NODEFILE"}
    with pytest.raises(ValueError, match="pbsdsh started this process, but these variables are not set: PBS_NODEFILE"):
        environment.resolve(without, **PORTS)
    with pytest.raises(ValueError, match=r"PBS_NODEFILE cannot be read .* Copy it to a shared directory"):
        environment.resolve(task(nodefile.with_name("none"), 0), **PORTS)
    with pytest.raises(ValueError, match=r"PBS_NODENUM is beyond the 3 host\(s\).* pbsdsh -u.* PBS_NODENUM=3"):
        environment.resolve(task(nodefile, 3), **PORTS)
