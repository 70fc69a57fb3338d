"""The notice of the end of a run: calls a command or a URL. Imports no TensorFlow."""

import http.client
import json
import os
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.report import files

# Seconds that the command or the server may take.
_SECONDS = 20.0


def send(
    target: str,
    end: str,
    *,
    workdir: Path,
    step: int,
    total_steps: int,
    values: Mapping[str, Any],
    text: str,
) -> str:
    """Calls `target`: posts JSON to a URL (http, https), or runs a shell command with the JSON as its input.

    The JSON has "text", a line for a reader, which chat services show, and "state", "workdir", "step", "total_steps",
    "values" and "trouble". A command also gets them as TFDIST_STATE, TFDIST_WORKDIR, TFDIST_STEP and TFDIST_TEXT.

    Args:
        end: "finished", "stopped", "lost", "diverged" or "failed".
        values: the last metrics.
        text: the last line of trouble, "" without.

    Returns:
        Why it failed; "" if it did not.
    """
    plain = {name: np.asarray(value).tolist() for name, value in values.items()}
    numbers = [f"{name} {value:.4g}" for name, value in plain.items() if isinstance(value, int | float)]
    trouble = text.strip().partition("\n")[0]
    parts = [f"{workdir.name} {end} at step {step} of {total_steps}", *numbers, *([trouble] if trouble else [])]
    message: dict[str, Any] = {"text": ", ".join(parts), "state": end, "workdir": str(workdir.resolve()), "step": step}
    message |= {"total_steps": total_steps, "values": plain, "trouble": text}
    body = json.dumps(files.nan_to_null(message)).encode()
    return _post(target, body) if target.startswith(("http://", "https://")) else _call(target, body, message)


def _post(url: str, body: bytes) -> str:
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_SECONDS):
            return ""
    except (OSError, ValueError, http.client.HTTPException) as error:  # Without the URL, which may hold a secret.
        return f"the server of report.notify failed: {getattr(error, 'reason', None) or type(error).__name__}"


def _call(command: str, body: bytes, message: Mapping[str, Any]) -> str:
    names = {"TFDIST_STATE": "state", "TFDIST_WORKDIR": "workdir", "TFDIST_STEP": "step", "TFDIST_TEXT": "text"}
    env = os.environ | {name: str(message[value]) for name, value in names.items()}
    try:
        done = subprocess.run(
            command, shell=True, input=body, env=env, capture_output=True, timeout=_SECONDS, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f"it took more than {_SECONDS:g} s" if isinstance(error, subprocess.TimeoutExpired) else f"{error}"
        return f"the command of report.notify failed: {reason}"
    said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"the command of report.notify exited with {done.returncode}: {said}" if done.returncode else ""
