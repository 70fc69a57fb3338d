"""The keys with which workers sign their messages: secrets that only the user who started the job can read.

TFDIST_KEY, if it is set, is the only key. Otherwise there are two, each in a file with mode 0600 that the first worker
creates: one in the workdir, for the time of the rendezvous, and one in the home directory. Workers sign with all their
keys, and accept a message that is signed with any of them: a shared workdir or a shared home directory is enough.
"""

import contextlib
import dataclasses
import hashlib
import hmac
import os
import pathlib
import secrets
import stat
import time
from collections.abc import Mapping

VARIABLE = "TFDIST_KEY"
# Name of the file in the workdir, and its path below the home directory.
_IN_WORKDIR, _IN_HOME = ".tfdist-key", ".tfdist/key"
_LEAST_CHARACTERS = 16
_KEY_BYTES = 32
# Seconds and attempts until a network file system shows a file that exists.
_PAUSE_SECONDS, _ATTEMPTS = 0.3, 10


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one worker."""

    secrets: tuple[bytes, ...] = dataclasses.field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """Returns the HMAC-SHA256 of `data` with each key, as hexadecimal digits separated by commas."""
        return b",".join(hmac.new(key, data, hashlib.sha256).hexdigest().encode() for key in self.secrets)

    def verify(self, data: bytes, signatures: bytes) -> bool:
        """Returns True if one of at most two `signatures` is by one of these keys."""
        expected = self.sign(data).split(b",")
        return any(hmac.compare_digest(one, other) for one in expected for other in signatures.split(b",")[:2])


def load(workdir: os.PathLike | str | None, env: Mapping[str, str]) -> Keys:
    """Returns the keys of this worker; creates the files if they are missing.

    Args:
        workdir: a local path that the workers may share; None: there is none.
        env: the environment; TFDIST_KEY is a text of at least 16 characters, equal on all workers.

    Raises:
        ValueError: TFDIST_KEY is too short, or no key file can be used; names the files and the reasons.
    """
    text = env.get(VARIABLE, "")
    if text:
        if len(text) < _LEAST_CHARACTERS:
            raise ValueError(
                f"{VARIABLE} must have at least {_LEAST_CHARACTERS} characters, such as the output of `openssl rand "
                f"-hex 32`. Received: {len(text)} characters."
            )
        return Keys((text.encode(),))
    paths = [] if workdir is None else [pathlib.Path(workdir) / _IN_WORKDIR]
    paths.append(pathlib.Path(os.path.expanduser("~")) / _IN_HOME)
    found, problems = [], []
    for path in paths:
        try:
            found.append(_read_or_create(path))
        except (OSError, ValueError) as error:
            problems.append(f"  {path}: {getattr(error, 'strerror', None) or error}")
    if not found:
        raise ValueError(
            f"The workers need a key to sign their messages. Set {VARIABLE} to the same secret text on all workers "
            "(openssl rand -hex 32), or make one of these files usable:\n" + "\n".join(problems)
        )
    return Keys(tuple(found))


def remove_from_workdir(workdir: os.PathLike | str) -> None:
    """Removes the key file of the workdir, if there is one."""
    with contextlib.suppress(OSError):
        (pathlib.Path(workdir) / _IN_WORKDIR).unlink()


def _read_or_create(path: pathlib.Path) -> bytes:
    for attempt in range(_ATTEMPTS):
        try:
            return _read(path)
        except FileNotFoundError:
            if attempt:
                time.sleep(_PAUSE_SECONDS)
            _create(path)
    return _read(path)


def _read(path: pathlib.Path) -> bytes:
    """Reads a key file; raises ValueError if other users can read it or may have written it."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ValueError("it must be a file of your own with mode 0600: remove it, and it is created again")
        text = file.read(2 * _KEY_BYTES + 2).strip()
    if len(text) != 2 * _KEY_BYTES:
        raise ValueError("it is not a key of tfdist: remove it, and it is created again")
    return text


def _create(path: pathlib.Path) -> None:
    """Creates a key file with a random key, complete from the start; does nothing if there is one."""
    path.parent.mkdir(mode=0o700 if path.parent.name.startswith(".") else 0o777, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_hex(_KEY_BYTES).encode() + b"\n")
    try:
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # Unlike a renaming, it does not replace the file of another worker.
    finally:
        temporary.unlink()
