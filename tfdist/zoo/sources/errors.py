"""Text of errors about examples that cannot be read. Imports no TensorFlow."""

import re

_NODE = re.compile(r"\{\{.*?\}\}\s*|\s*\[Op:.*")


def reason(error: Exception) -> str:
    """Returns the first line of `error`'s message, without the names of TensorFlow's nodes, with a full stop."""
    text = _NODE.sub("", str(error).strip()).split("\n")[0].strip()
    return text if text.endswith(".") else f"{text}."
