"""Prints the bytes that each replica of this process holds of the optimizer's slots, after a step, and of other parts.

`python tests/support/slots_probe.py CONFIG DEVICES`
"""

import json
import pathlib
import runpy
import sys
import tempfile

from tfdist.checkpoint.divided import local_variables
from tfdist.training import execution, setup


def main() -> None:
    """Builds the run, makes one step, and prints the sizes."""
    config = runpy.run_path(sys.argv[1])["get_config"]()
    config.cluster.logical_devices = int(sys.argv[2])
    run = setup.build_run(config, pathlib.Path(tempfile.mkdtemp()))
    optimizer, strategy = run.context.optimizer, run.cluster.strategy
    held = [_held(strategy, variable) for variable in optimizer.variables]
    execution.training_steps(run)(run.feed.open_training(0, run.total_steps), 1)
    slots = {id(variable) for variable in optimizer.variables}
    others = [one for one in run.replica_state.variables() if id(one) not in slots]
    found = {
        "built": [sum(sizes) for sizes in zip(*held, strict=True)],
        "slots": [sum(sizes) for sizes in zip(*(_held(strategy, one) for one in optimizer.variables), strict=True)],
        "others": sum(sum(_held(strategy, one)) for one in others),
    }
    print("found:", json.dumps(found))


def _held(strategy, variable) -> list[int]:
    return [one.numpy().nbytes for one in local_variables(strategy, variable.value)]


if __name__ == "__main__":
    main()
