"""Random numbers of a step: functions of seed, step, micro-batch and replica, so that a resumed run draws the same."""
