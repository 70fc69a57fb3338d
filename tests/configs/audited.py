"""As virtual.py, with audits and an objective in which tests plant faults."""

import runpy

from tfdist import config as c


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    config = runpy.run_path("tests/configs/virtual.py")["get_config"]()
    config.data.shuffle = False
    prepare = {"target": "tests.support.faulty:with_step", "batch_size": 64, "steps_per_epoch": 22}
    config.data.prepare = prepare | {"scale": 1 / 16, "pad": 1, "flip": True}
    config.objective = {"target": "tests.support.faulty:objective"}
    config.evaluation.every.steps, config.consistency.every.epochs, config.report.state_hash = None, None, "comparisons"
    config.consistency.audit.every = 3
    return config
