"""The dtypes of TensorFlow's collectives, and values of other dtypes, which are sent as their bits."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfdist.cluster.devices import bits as bits_lib
from tfdist.cluster.devices import gather

OPS = [
    *("CollectiveReduceV2", "CollectiveGatherV2", "CollectiveBcastSend", "CollectiveBcastRecv"),
    *("CollectiveBcastSendV2", "CollectiveBcastRecvV2", "NcclAllReduce"),
]
NUMBERS = [
    *(np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.uint64, ml_dtypes.bfloat16),
    *(np.complex64, np.complex128),
]


def allowed(op):
    (attribute,) = [one for one in op_def_registry.get(op).attr if one.name == "T"]
    return {tf.as_dtype(number) for number in attribute.allowed_values.list.type}


def test_the_dtypes_are_those_that_all_collectives_have():
    assert set.intersection(*map(allowed, OPS)) == {*bits_lib.DTYPES}


@pytest.mark.parametrize("dtype", NUMBERS)
def test_each_bit_of_numbers_is_sent(dtype):
    content = np.random.default_rng(0).bytes(16 * 6)
    given = np.frombuffer(content, np.uint8) % 2 == 1 if dtype is np.bool_ else np.frombuffer(content, dtype)
    value = tf.constant(given.reshape(2, 3, -1))
    bits = bits_lib.to_bits(value)
    assert bits.dtype in (tf.int32, tf.int64) and bits.shape[:2] == (2, 3)
    back = bits_lib.from_bits(bits, value.dtype)
    assert back.dtype == value.dtype and back.shape == value.shape
    assert back.numpy().tobytes() == given.tobytes()


@pytest.mark.parametrize("texts", [["", "b\0", "c\0d\0\0", "Grüße"], []])
def test_each_byte_of_texts_is_sent(texts):
    value = tf.constant(texts, tf.string)
    codes = gather.to_codes(value, tf.constant(9))
    assert codes.dtype in bits_lib.DTYPES and codes.shape == (len(texts), 9)
    back = gather.from_codes(codes, tf.strings.length(value))
    assert [text.decode() for text in back.numpy()] == texts
