"""The old name of `tfdist.configs.networks.courses`, for one release."""

import warnings

from tfdist.configs.networks.courses import *  # noqa: F403

_TEXT = "tfdist.zoo.courses is now tfdist.configs.networks.courses: change the name"
warnings.warn(_TEXT, FutureWarning, stacklevel=2)
