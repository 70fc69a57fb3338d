"""A real Slurm of several nodes on this one machine, for tests: one slurmctld, and one slurmd per node.

Everything runs in Linux namespaces of its own. Each node has its own host name, network stack, IP address, process
ids and boot id, so that a worker looked for on the wrong node is not found, and a port taken on one node is free on
the other, as on a real cluster. `/etc/hosts` is private, so the machine is left as it is, and two test runs at once
cannot meet. The first process of the process namespace reads a pipe that only the test process holds open: when the
test ends, fails or is killed, the kernel ends every process of the cluster.

    with slurm_cluster(tmp_path, nodes=("n9", "n10")) as slurm:
        slurm.run(["srun", "-N2", "-n4", "hostname"]).stdout
"""

import contextlib
import os
import pathlib
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

_DEBIAN_PACKAGE = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
    "munged": "munge",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
_NAMESPACES = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
# How nsenter names them, and the links below /proc/PID/ns.
_LINKS = {"mount": "mnt", "net": "net", "uts": "uts", "ipc": "ipc", "pid": "pid_for_children"}
# What another launcher, perhaps that of the tests themselves, has left in the environment.
_LAUNCHERS = ("SLURM", "SBATCH", "SRUN", "SALLOC", "OMPI_", "PMI_", "PMIX_", "TF_CONFIG")
# The cluster's network exists in its namespace alone: any addresses do.
_NETWORK, _PREFIX_LENGTH = "10.209.0", 24
_CONTROLLER = "controller"
_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
_MAX_SOCKET_PATH = 107
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def slurm_missing() -> str | None:
    """Returns why `slurm_cluster` cannot work on this machine, or None where it can."""
    if not sys.platform.startswith("linux"):
        return "a Slurm for tests needs Linux"
    if os.geteuid() != 0:
        return "a Slurm for tests must be started by root"
    absent = [program for program in _DEBIAN_PACKAGE if _program(program) is None]
    if absent:
        packages = dict.fromkeys(_DEBIAN_PACKAGE[program] for program in absent)
        return f"no {', '.join(absent)} on this machine (Debian: apt-get install {' '.join(packages)})"
    link = ["link", "add", "node", "type", "veth", "peer", "name", "controller"]
    trial = subprocess.run([_program("unshare"), *_NAMESPACES, _program("ip"), *link], capture_output=True, text=True)
    if trial.returncode != 0:
        return f"root may not make namespaces and network devices here: {trial.stderr.strip()}"
    return None


class SlurmCluster:
    """A running cluster; made by `slurm_cluster`.

    Attributes:
        nodes: the names of its nodes.
        env: the environment in which its commands run; holds SLURM_CONF, and nothing of the tests' own launcher.
        directory: holds the configuration, the state and the logs.
    """

    def __init__(self, nodes: Sequence[str], directory: pathlib.Path, env: dict[str, str], pid: int):
        self.nodes = tuple(nodes)
        self.directory = directory
        self.env = env
        self._pid = pid

    def popen(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, **kwargs) -> subprocess.Popen:
        """Starts `command` on the controller's host, in a process group of its own.

        Args:
            command: for example `["srun", "-N2", "hostname"]`.
            env: variables added to `self.env`.
            **kwargs: for `subprocess.Popen`; without `cwd`, the command runs in the repository.
        """
        # Entering a mount namespace moves a process to "/".
        chdir = ["env", f"--chdir={kwargs.pop('cwd', pathlib.Path(__file__).parents[2])}"]
        command = [*_enter(self._pid), *chdir, *map(str, command)]
        return subprocess.Popen(command, env=self.env | dict(env or {}), start_new_session=True, **kwargs)

    def run(self, command: Sequence[str], *, timeout: float = 60.0, **kwargs) -> subprocess.CompletedProcess:
        """Runs `command` as `popen` does, with its keyword arguments, and waits for it.

        Returns:
            The completed process, with stdout and stderr as text; a failure shows in its returncode.

        Raises:
            TimeoutError: `command` did not end within `timeout` seconds; shows what it wrote and Slurm's queue.
        """
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with self.popen(command, **(pipes | kwargs)) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                queue = "" if "squeue" in command else self.run(["squeue", "--steps"], timeout=20).stdout
                stdout, stderr = _end(process)
                raise TimeoutError(
                    f"{command} has not ended in {timeout} s.\nstdout:\n{stdout}\nstderr:\n{stderr}\n{queue}"
                ) from None
            except BaseException:
                _end(process)
                raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def output(self, command: Sequence[str], **kwargs) -> str:
        """Runs `command` as `run` does, asserts that it succeeds, and returns what it wrote to standard output."""
        done = self.run(command, **kwargs)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` says of a job, or of a task of an array."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run(["scontrol", "show", "job", number]).stdout))

    def power_off(self, node: str) -> None:
        """Kills all processes of a node at once; Slurm learns that it is down, and requeues its jobs."""
        self._run_on(node, ["bash", "-c", "kill -KILL -1"])  # All but bash itself, and the first one.
        self.output(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"])

    def power_on(self, node: str) -> None:
        """Starts a node again, with another boot id."""
        _boot_id(self.directory, node).write_text(f"{uuid.uuid4()}\n")
        self._run_on(node, ["slurmd", "-N", node])  # Slurm then uses it again: ReturnToService.

    def boot_id(self, node: str) -> str:
        """The boot id that processes of a node find; where it cannot be replaced, that of this machine."""
        return self._run_on(node, ["cat", _BOOT_ID]).strip()

    def _run_on(self, node: str, command: Sequence[str]) -> str:
        return self.output([*_enter(_host_pid(self.directory, node).read_text()), *command])


@contextlib.contextmanager
def slurm_cluster(
    directory: os.PathLike | str,
    nodes: Sequence[str] = ("n9", "n10"),
    *,
    cpus: int = 16,
    gpus: int = 0,
    features: str = "",
) -> Iterator[SlurmCluster]:
    """Runs a Slurm for the duration of a `with` block; afterwards no process of it is left.

    Skips the test where this machine cannot have one.

    Args:
        directory: holds the configuration, state, logs, key and socket; one cluster per directory.
        nodes: names of the nodes, at most 200. Each resolves to its own address, only inside the cluster.
        cpus: processors that Slurm counts on each node; need not exist, and nothing is bound to them.
        gpus: GPUs that Slurm counts on each node, and names in the tasks' variables. They stand for /dev/null.
        features: what every node has, as constraints name it: "v100-32g,gpu".

    Raises:
        ValueError: the path of `directory` is too long for a socket.
        RuntimeError: the cluster has not started; shows the ends of the logs.
    """
    if reason := slurm_missing():
        import pytest  # Not in the namespaces.

        pytest.skip(reason)
    directory = pathlib.Path(directory).resolve()
    sockets = [directory / "munge.socket", *(directory / "spool" / node / f"{node}_1.0" for node in nodes)]
    if max(len(os.fsencode(path)) for path in sockets) > _MAX_SOCKET_PATH:
        raise ValueError(f"The path is too long for a socket: choose a shorter one. Received: {directory}")
    _write_files(directory, nodes, cpus, gpus, features)
    env = {key: value for key, value in os.environ.items() if not key.startswith(_LAUNCHERS)}
    env |= {"SLURM_CONF": str(directory / "slurm.conf"), "PATH": _PATH}
    supervisor = [sys.executable, "-I", os.path.abspath(__file__), str(directory), *nodes]
    with (directory / "supervisor.log").open("w") as log:
        process = subprocess.Popen(
            [_program("unshare"), *_NAMESPACES, *supervisor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            start_new_session=True,  # Control-C reaches the test, which then ends the cluster.
        )
    try:
        _await_ready(process, directory)
        yield SlurmCluster(nodes, directory, env, process.pid)
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _program(name: str) -> str | None:
    return shutil.which(name, path=_PATH)


def _enter(pid: int | str) -> list[str]:
    """The beginning of a command that runs in the namespaces of a process that `unshare` has started."""
    return [_program("nsenter"), *(f"--{option}=/proc/{pid}/ns/{name}" for option, name in _LINKS.items()), "--"]


def _boot_id(directory: pathlib.Path, node: str) -> pathlib.Path:
    return directory / f"boot_id.{node}"


def _host_pid(directory: pathlib.Path, node: str) -> pathlib.Path:
    return directory / f"host.{node}.pid"


def _end(process: subprocess.Popen) -> tuple[str, str]:
    os.killpg(process.pid, signal.SIGTERM)  # srun then cancels its step.
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=5)
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()


def _await_ready(process: subprocess.Popen, directory: pathlib.Path) -> None:
    ready, _, _ = select.select([process.stdout], [], [], 60.0)  # Until the nodes are idle.
    if ready and process.stdout.readline() == b"ready\n":
        return
    ends = [f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(directory.glob("*.log"))]
    raise RuntimeError(f"The Slurm in {directory} has not started.\n" + "\n".join(ends))


# PropagateResourceLimits: root in a container may not raise limits. KillWait: seconds from SIGTERM to SIGKILL.
_SLURM_CONF = """\
ClusterName=test
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
PropagateResourceLimits=NONE
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait=60
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _write_files(directory: pathlib.Path, nodes: Sequence[str], cpus: int, gpus: int, features: str) -> None:
    for name in ("state", "spool"):
        (directory / name).mkdir(parents=True)
    key = directory / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    hosts = {"localhost": "127.0.0.1", _CONTROLLER: f"{_NETWORK}.1"} | _addresses(nodes)
    (directory / "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
    for node in nodes:
        _boot_id(directory, node).write_text(f"{uuid.uuid4()}\n")
    for index in range(gpus):
        os.mknod(directory / f"gpu{index}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    if gpus:
        (directory / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={directory}/gpu[0-{gpus - 1}]\n")
    more = f"RealMemory=100000 Gres=gpu:{gpus}" + (f" Features={features}" if features else "")
    node_lines = "".join(f"NodeName={node} CPUs={cpus} {more}\n" for node in nodes)
    (directory / "slurm.conf").write_text(_SLURM_CONF.format(directory=directory, controller=_CONTROLLER) + node_lines)


def _addresses(nodes: Sequence[str]) -> dict[str, str]:
    return {node: f"{_NETWORK}.{index + 2}" for index, node in enumerate(nodes)}


# What follows runs inside the namespaces, as their first process.


def _supervise(directory: pathlib.Path, nodes: Sequence[str]) -> None:
    subprocess.run(["mount", "--bind", directory / "hosts", "/etc/hosts"], check=True)
    subprocess.run(["hostname", _CONTROLLER], check=True)
    _ip("link set lo up")
    _ip("link add cluster type bridge")
    _ip(f"address add {_NETWORK}.1/{_PREFIX_LENGTH} dev cluster")
    _ip("link set cluster up")
    # --force: munged would refuse a socket below a temporary directory, which others may not enter.
    files = [f"--{name}-file={directory}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    _start(["munged", "--foreground", "--force", f"--socket={directory}/munge.socket", *files])
    _await((directory / "munge.socket").exists)
    _start(["slurmctld", "-D", "-i"])
    for node, address in _addresses(nodes).items():
        _start_node(directory, node, address)
    _await(lambda: _idle_nodes() == set(nodes))
    print("ready", flush=True)
    # The first process of a namespace inherits its orphans, and has to reap them.
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


# The first process of a node, which inherits its orphans: bash reaps them.
_FIRST = "hostname {node}; mount --bind {boot_id} {path}; touch {ready}; while :; do sleep 1000 & wait; done"


def _start_node(directory: pathlib.Path, node: str, address: str) -> None:
    """Gives `node` namespaces of its own and a boot id, joins it to the bridge, and starts its slurmd there."""
    ready = directory / f"host.{node}.ready"
    first = _FIRST.format(node=node, boot_id=_boot_id(directory, node), path=_BOOT_ID, ready=ready)
    host = _start(["unshare", *_NAMESPACES, "bash", "-c", first])
    _host_pid(directory, node).write_text(f"{host}")
    _await(ready.exists)
    inside = _enter(host)
    _ip(f"link add to-{address} type veth peer name eth0 netns {host}")
    _ip(f"link set to-{address} master cluster up")
    _ip("link set lo up", inside)
    _ip(f"address add {address}/{_PREFIX_LENGTH} dev eth0", inside)
    _ip("link set eth0 up", inside)
    _start([*inside, "slurmd", "-D", "-N", node])


def _ip(arguments: str, inside: Sequence[str] = ()) -> None:
    subprocess.run([*inside, "ip", *arguments.split()], check=True)


def _start(command: Sequence[str]) -> int:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr).pid


def _idle_nodes() -> set[str]:
    listing = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%N %t"], capture_output=True, text=True).stdout
    return {line.split()[0] for line in listing.splitlines() if line.endswith(" idle")}


def _await(condition: Callable[[], bool]) -> None:
    while not condition():  # The test process keeps the deadline.
        if select.select([sys.stdin], [], [], 0.02)[0]:
            sys.exit("The test process has gone.")


if __name__ == "__main__":
    _supervise(pathlib.Path(sys.argv[1]), sys.argv[2:])
