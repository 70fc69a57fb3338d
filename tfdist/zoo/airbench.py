"""The old name of `tfdist.configs.networks.airbench`, for one release."""

import warnings

from tfdist.configs.networks.airbench import *  # noqa: F403

_TEXT = "tfdist.zoo.airbench is now tfdist.configs.networks.airbench: change the name"
warnings.warn(_TEXT, FutureWarning, stacklevel=2)
