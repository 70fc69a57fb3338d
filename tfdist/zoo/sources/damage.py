"""What is said of examples that cannot be read. No TensorFlow."""

import re

_NODE = re.compile(r"\{\{.*?\}\}\s*|\s*\[Op:.*")


def reason(error: Exception) -> str:
    """Returns the first line of `error`'s message, without the names of TensorFlow's nodes, ending in a full stop."""
    text = _NODE.sub("", str(error).strip()).split("\n")[0].strip()
    return text if text.endswith(".") else f"{text}."
