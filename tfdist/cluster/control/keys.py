"""The key that signs the messages of a job's workers, derived from the job's id and a secret only the user can read.

The secret is TFDIST_KEY if it is set. Otherwise it is in the file ~/.tfdist/key, with mode 0600, which the first worker
of the first job creates.
"""

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
_IN_HOME = ".tfdist/key"
_MIN_CHARACTERS = 16
_SECRET_BYTES = 32
# Seconds between attempts, and number of attempts, to read a file that another worker is still writing.
_PAUSE_SECONDS, _ATTEMPTS = 0.3, 10


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """The key of one job."""

    value: bytes = dataclasses.field(repr=False)

    def sign(self, data: bytes) -> bytes:
        """Returns the HMAC-SHA256 of `data`, as hexadecimal digits."""
        return hmac.new(self.value, data, hashlib.sha256).hexdigest().encode()

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Returns True if `signature` was made with this key."""
        return hmac.compare_digest(self.sign(data), signature)


def load(job: str, env: Mapping[str, str]) -> Key:
    """Returns the key of a job; creates the file with the secret if it is needed and missing.

    Args:
        job: `WorkerSpec.job`.
        env: the environment; TFDIST_KEY is a string of at least 16 characters, equal on all workers.

    Raises:
        ValueError: TFDIST_KEY is too short, or the file cannot be used; the message names the file and the reason.
    """
    secret = env.get(VARIABLE, "").encode()
    if not secret:
        path = pathlib.Path(os.path.expanduser("~")) / _IN_HOME
        try:
            secret = _read_or_create(path)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"The workers need a key to sign their messages. Set {VARIABLE} to the same secret text on all workers "
                f"(openssl rand -hex 32), or make {path} usable: {getattr(error, 'strerror', None) or error}"
            ) from None
    elif len(secret) < _MIN_CHARACTERS:
        raise ValueError(
            f"{VARIABLE} must have at least {_MIN_CHARACTERS} characters, such as the output of `openssl rand "
            f"-hex 32`. Received: {len(secret)} characters."
        )
    return Key(Key(secret).sign(job.encode()))


def _read_or_create(path: pathlib.Path) -> bytes:
    for _ in range(_ATTEMPTS):
        try:
            text = _read(path)
        except FileNotFoundError:
            _create(path)
            text = _read(path)
        if len(text) == 2 * _SECRET_BYTES:
            return text
        time.sleep(_PAUSE_SECONDS)
    raise ValueError("it is not a key of tfdist. Remove it: the next start creates a new one")


def _read(path: pathlib.Path) -> bytes:
    """Reads the file; raises ValueError if other users can read it or may have written it."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ValueError("it must be your own file with mode 0600. Remove it: the next start creates a new one")
        return file.read(2 * _SECRET_BYTES + 2).strip()


def _create(path: pathlib.Path) -> None:
    """Creates the file with a random secret, unless another worker does."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with open(descriptor, "wb") as file:
        file.write(secrets.token_hex(_SECRET_BYTES).encode() + b"\n")
