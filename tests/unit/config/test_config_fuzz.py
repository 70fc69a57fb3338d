"""Any text for any field of a config is accepted or answered with one message."""

import keras
import pytest

from tfdist.config import diff, load, specs, user_code
from tfdist.data import inputs as inputs_lib
from tfdist.training import features
from tfdist.training.step import optimizer as optimizer_lib

FILE = "configs/digits.py"
FIELDS = [name for name, _ in diff.flatten(load.load(FILE))]
TEXTS = (
    *("", "none", "true", "0", "-1", "1", "7", "1e-3", "1e400", "nan", "-inf", "2147483648", "9" * 400),
    *("[]", "[1, 2]", "{}", "{'target': 'keras:Model'}", "()", "'", "\0", "\u00e4\u6f22", "a b", "[" * 300),
    *(":", "a:", ":b", "keras:", ".:.", "os:path", "os:nowhere", "keras:Model", "builtins:dict", "builtins:print"),
    *("keras.layers:Dense", "tfdist.zoo.models:nothing", "../..", "train[:0]", "train[1:", "*" * 3000),
)
CASES = [(field, text) for field in FIELDS for text in TEXTS]
SMALL = ("units", "group_size", "num_classes")  # A network of 2**31 units would be built.


def outcome(field: str, text: str) -> str | None:
    """Returns the message about `--config.FIELD=TEXT`; None if it is accepted. Other errors pass."""
    try:
        config = load.load(FILE, [f"--config.{field}={text}"])
        features.validate_config(config)
        inputs = inputs_lib.open_inputs(config)
        inputs_lib.make_sizes(config, inputs, 1)
        optimizer_lib.build_optimizer(config, 10, 100)
        if not field.endswith(SMALL):
            specs.build(config.model, field="config.model")
    except SystemExit as end:
        return str(end.code)
    except Exception as error:
        if not user_code.is_user_error(error):
            raise
        return str(error)
    return None


def check(cases):
    wrong = []
    for field, text in cases:
        try:
            message = outcome(field, text)
        except Exception as error:
            wrong.append(f"--config.{field}={text[:40]!r}: {type(error).__name__}: {error}")
            continue
        named = message is None or field.partition(".")[0] in message or repr(text)[1:-1] in message
        if not named or "Traceback" in (message or ""):
            wrong.append(f"--config.{field}={text[:40]!r}: {message[:200]}")
    keras.utils.clear_session()
    assert not wrong, "\n".join(wrong)


def test_some_texts_for_each_field_give_one_message_or_are_accepted():
    check(CASES[::23])


@pytest.mark.slow
def test_all_texts_for_each_field_give_one_message_or_are_accepted():
    check(CASES)
