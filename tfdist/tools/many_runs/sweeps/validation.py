"""Checks the config of every run of a sweep before the first one is started, as `tfdist train` would check it."""

import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from tfdist.config import flags as config_flags
from tfdist.config import schema, user_code, validate
from tfdist.config.command_line import words


def check(runs: Mapping[str, Sequence[str]]) -> list[schema.Config]:
    """Returns the config of each run, given its name and the words that name the config and override its fields.

    Raises ValueError, which names the run, and says as `tfdist train` which of its fields does not exist or is invalid.
    """
    configs = []
    before = list(sys.argv)
    try:
        for name, given in runs.items():
            try:
                configs.append(_config(given))
            except (ValueError, SystemExit) as error:
                raise ValueError(f"nothing was started, because the run {name} is invalid. {error}") from None
    finally:
        sys.argv[:] = before
    return configs


def _config(given: Sequence[str]) -> schema.Config:
    overrides = [name for name in flags.FLAGS if name.startswith("config.")]
    flags.FLAGS.remove_flag_values(overrides)  # Those of another run.
    sys.argv[1:] = words.complete(list(given))
    config_flags.parse(sys.argv)
    config = flags.FLAGS["config"].value
    validate.validate(config)
    return config


def given_space(path: str) -> dict[str, Any]:
    """Returns what `get_sweep()` of a config file, the value of --config, returns; {} where it has no such function.

    Raises ValueError if it returns no dict, or fails.
    """
    file = path.partition(":")[0]
    if not file.endswith(".py"):
        return {}
    try:
        function = runpy.run_path(file).get("get_sweep")
        found = {} if function is None else function()
    except Exception as error:
        raise ValueError(f"get_sweep() of {file}: {user_code.explain(error) or error}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f'get_sweep() of {file} must return a dict, as {{"seed": [0, 1]}}. Received: {found!r}')
    return found
