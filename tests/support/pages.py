"""The commands and scripts that pages show."""

import re

from processes import REPOSITORY


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language in a page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def scripts(page: str) -> dict[str, str]:
    """The files that a page of docs/ shows, by the name in the first line of each."""
    found = blocks((REPOSITORY / "docs" / page).read_text(), "python")
    return {name[1]: text for text in found if (name := re.match(r"# (\w+\.py)\n", text))}
