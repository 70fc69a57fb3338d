"""Prints the pages of tfdist, or searches them: `python -m tfdist docs [PAGE | WORD]`, such as `tfdist docs slurm`.

Without a word it lists the pages. The name of a page, or a part that only one name has, prints this page; the path of a
file that the pages name, such as launch/slurm.sbatch, prints the file. Any other words are searched for, and the lines
with them are printed.
"""

import os
import pydoc
import re
import sys
import textwrap
from pathlib import Path

from tfdist.config.command_line import tool_words
from tfdist.tools.start import shipped

USAGE = "[PAGE | WORD...]"
FOLDER = shipped.find("docs")
# Lines of a page that a search prints.
_MAX_LINES = 4
_WIDTH = 100


def define_flags() -> None:
    """Defines no flags."""


parse = tool_words.parse_words


def main(argv: list[str]) -> None:
    """Prints the list of pages, a page, or the lines with the given words; raises ValueError if no page has them."""
    found, words = pages(), " ".join(argv[1:]).strip().lower()
    if (file := _file(words)) is not None:
        print(file.read_text(encoding="utf-8"), end="")
        return
    named = [name for name in found if words in (name, f"{name}.md", f"docs/{name}.md")]
    named = named or [name for name in found if words and words in name]
    if not words:
        print("The pages; tfdist docs NAME prints one, tfdist docs WORD searches all.\n")
        width = max(map(len, found))
        print("\n".join(f"  {name:{width}}  {title(text)}" for name, text in found.items()))
    elif len(named) == 1:
        _show(plain(found[named[0]]))
    else:
        lines = [line for name, text in found.items() for line in search(name, text, words)]
        if not lines:
            raise ValueError(f"no page has {words!r}. tfdist docs lists the pages.")
        _show("\n".join(lines))


def _file(words: str) -> Path | None:
    """Returns the shipped file of this path, such as launch/slurm.sbatch; None: there is none, or it is a page."""
    folder = words.partition("/")[0]
    if folder not in ("configs", "docs", "launch") or words.endswith(".md"):
        return None
    path = shipped.find(words).resolve()
    return path if path.is_file() and path.is_relative_to(shipped.find(folder).resolve()) else None


def pages() -> dict[str, str]:
    """Returns name -> text of the pages in Markdown, in the order of docs/index.md, which itself is none."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
    order = re.findall(r"\]\(([\w-]+)\.md\)", texts.pop("index"))
    return {name: texts[name] for name in dict.fromkeys([*(name for name in order if name in texts), *texts])}


def plain(text: str) -> str:
    """Returns a page for a terminal: links without their targets, and what a picture shows in its place."""
    text = re.sub(r"^!\[(.*)\]\(.*\)$", r"(picture: \1)", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]\n]+)\]\((?!http)[^)\n]+\)", r"\1", text)


def title(text: str) -> str:
    """Returns the title of a page."""
    return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")


def search(name: str, text: str, words: str) -> list[str]:
    """Returns the lines of a page that contain `words`, lower case, with the heading above them; [] if none does."""
    found, heading = [], ""
    for line in text.splitlines():
        heading = line.lstrip("# ") if line.startswith("#") else heading
        if words in line.lower():
            found.append((heading, line.strip()))
    if not found:
        return []
    lines = [f"{name}: {title(text)}"]
    for heading, line in found[:_MAX_LINES]:
        text_of_line = line if heading in line else f"{heading}: {line}"
        lines.append(f"    {textwrap.shorten(text_of_line, _WIDTH - 4, placeholder=' ...')}")
    more = len(found) - _MAX_LINES
    return [*lines, *([f"    and {more} more lines: tfdist docs {name}"] if more > 0 else []), ""]


def _show(text: str) -> None:
    if sys.stdout.isatty() and text.count("\n") > os.get_terminal_size().lines:
        pydoc.pager(text)
    else:
        print(text)
