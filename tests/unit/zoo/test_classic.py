"""AlexNet. The line: tests/workers/test_consistency.py."""

import numpy as np
import pytest

from tfdist.configs.networks import classic


@pytest.mark.slow
def test_alexnet_has_the_size_of_its_layers_and_both_forms_are_one_network():
    kernels = 121 * 3 * 96 + 25 * 96 * 256 + 9 * 256 * 384 + 9 * 384 * 384 + 9 * 384 * 256
    channels = 96 + 256 + 384 + 384 + 256
    dense = (6 * 6 * 256 + 1) * 4096 + 4097 * 4096 + 4097 * 10
    assert classic.alexnet().count_params() == kernels + channels + 4 * channels + dense == 58_327_818
    functional, sequential = (classic.alexnet(input_shape=(67, 67, 3), form=form) for form in classic.FORMS)
    sequential.set_weights(functional.get_weights())
    images = np.random.default_rng(0).random((2, 67, 67, 3), np.float32)
    np.testing.assert_array_equal(functional(images), sequential(images))
