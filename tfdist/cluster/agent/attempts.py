"""What an agent tries in the exchange: the addresses of workers, its own port, the workdir. Standard library only."""

import asyncio
import contextlib
import dataclasses
import errno
import pathlib
from collections.abc import Iterator, Mapping

from tfdist.cluster.agent import decision, dialing, messages
from tfdist.cluster.agent.dialing import UnreachableError, WrongPeerError
from tfdist.cluster.agent.messages import Exchange, now

# Seconds in which another job, perhaps just ending, may use a worker's address.
_WRONG_PEER_SECONDS = 5.0
# Seconds that a network file system may take to show a new file.
_WORKDIR_SECONDS = 10.0


@dataclasses.dataclass(slots=True)
class Attempts:
    """What came of the attempts to connect to one address."""

    # Why the last one failed, in words.
    why: str = ""
    # What another worker there had replied, in words, and since when.
    wrong: str = ""
    wrong_since: float = 0.0

    def note(self, error: UnreachableError) -> None:
        """Notes a failed attempt."""
        if isinstance(error, WrongPeerError):
            self.why = self.wrong = str(error)
            self.wrong_since = self.wrong_since or now()
        else:
            self.why = str(error) + (f"; before that, {self.wrong}" if self.wrong else "")

    @property
    def in_vain(self) -> bool:
        """True if another worker is there for longer than a job takes to end."""
        return bool(self.wrong) and now() - self.wrong_since > _WRONG_PEER_SECONDS


async def ask(state: Exchange, rank: int, address: str, seconds: float = dialing.SECONDS) -> dict:
    """Asks who listens at "host:port"; returns the reply of this rank of this job, or raises UnreachableError."""
    reply = await dialing.request(address, state.links.keys, messages.make(state, "who", rank), seconds)
    verify(state, reply, rank)
    return reply


def verify(state: Exchange, reply: Mapping, rank: int) -> None:
    """Raises WrongPeerError if the reply is not from this rank of this job."""
    job = state.spec.job
    if reply.get("job") != job:
        raise WrongPeerError(f"a worker of another job is listening there ({reply.get('job')!r}; this job is {job!r})")
    if reply.get("rank") != rank:
        raise WrongPeerError(f"rank {reply.get('rank')} of this job is listening there")


async def try_addresses(state: Exchange, addresses: Mapping[int, str], moment: float, at_once: int = 3) -> None:
    """Connects to the agents at these addresses until `moment`; the others remain in `unreached`.

    At this worker's own address, another process may have the same rank.
    """
    gate, found = asyncio.Semaphore(at_once), {rank: Attempts() for rank in addresses}
    state.unreached |= dict.fromkeys(addresses, "")

    async def reach(rank: int, address: str) -> None:
        pause = 0.1
        while not state.over:
            try:
                async with gate:
                    reply = await ask(state, rank, address)
                if rank == state.spec.rank and reply.get("nonce") != state.nonce:
                    state.own.failed = decision.same_rank(rank, [state.me])
                state.unreached.pop(rank, None)
                return state.changed.set()
            except UnreachableError as error:
                found[rank].note(error)
                state.unreached[rank] = found[rank].why
            if found[rank].in_vain:
                if state.spec.rank == 0:
                    state.settle(decision.missing({rank: found[rank].why}, state.addresses, state.seconds))
                return
            await asyncio.sleep(pause)
            pause = min(1.0, 1.5 * pause)

    with contextlib.suppress(asyncio.TimeoutError):
        every = asyncio.gather(*(reach(rank, address) for rank, address in addresses.items()))
        await asyncio.wait_for(every, max(0.0, moment - now()))


async def explain_port(state: Exchange, error: OSError) -> str:
    """Returns why this worker cannot listen at its port."""
    port = state.spec.port
    if error.errno != errno.EADDRINUSE:
        return f"port {port} cannot be opened: {error.strerror}"
    who = "another program is listening on it"
    try:
        own = (state.addresses or [f"localhost:{port}"] * state.spec.num_workers)[state.spec.rank]
        await ask(state, -1, own, 1.0)
    except WrongPeerError as stranger:
        who = str(stranger).replace("listening there", "listening on it")
    except UnreachableError:
        pass
    advice = (
        "Restart all workers: a requeued Slurm job and a new job step have other ports. If they are in use again"
        if state.own.port_in_use
        else "If that program is not yours"
    )
    return (
        f"port {port} on host {state.me['host']} is in use: {who}. {advice}, choose other ports with "
        "config.cluster.port_base and port_count, or in TF_CONFIG's addresses"
    )


@contextlib.contextmanager
def token_file(workdir: pathlib.Path, nonce: str) -> Iterator[None]:
    """Creates workdir and a token file in it, which is removed at the end of the `with` block."""
    workdir.mkdir(parents=True, exist_ok=True)
    token = _token(workdir, nonce)
    token.touch()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            token.unlink()


async def wait_for_token(state: Exchange, moment: float) -> str:
    """Waits for rank 0's token file; returns the path of workdir if it does not appear in time, else ""."""
    limit = min(now() + _WORKDIR_SECONDS, moment)
    while state.workdir is not None and not state.over:
        # In a thread: a network file system that hangs must not delay replies to other workers.
        seen = asyncio.ensure_future(asyncio.to_thread(_token(state.workdir, state.chief.nonce).exists))
        await asyncio.wait([seen], timeout=max(0.0, limit - now()))
        if seen.done() and seen.exception() is None and seen.result():
            break
        if now() >= limit:
            return str(state.workdir)
        await asyncio.sleep(0.2)
    return ""


def _token(workdir: pathlib.Path, nonce: str) -> pathlib.Path:
    # A new name for each start: a network file system may cache that a file does not exist.
    return workdir / f".tfdist-{nonce}"
