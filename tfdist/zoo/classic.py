"""The old name of `tfdist.configs.networks.classic`, for one release."""

import warnings

from tfdist.configs.networks.classic import *  # noqa: F403

_TEXT = "tfdist.zoo.classic is now tfdist.configs.networks.classic: change the name"
warnings.warn(_TEXT, FutureWarning, stacklevel=2)
