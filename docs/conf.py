"""Builds the pages as a site: `python -m sphinx -W -b html docs site`, with the extra `docs` installed.

The pages are plain Markdown, which a git host and `tfdist docs` show as well. Two things are added here: the lists of
docs/index.md become the navigation, and `docs/NAME.md` in a page becomes a link, also to a section that follows in
quotes. `python -m sphinx -b linkcheck docs site/links` checks external links; its exit code is 1 if one is broken.
"""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

project = "tfdist"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["courses", "notebooks"]
html_theme = "furo"
html_title = "tfdist"
html_theme_options = {"sidebar_hide_name": False, "top_of_page_buttons": []}
html_static_path = ["site.css"]  # Long paths in tables may break.
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 3
# `-b linkcheck`: hosts that answer slowly, or not at once; addresses that are examples.
linkcheck_timeout = 20
linkcheck_retries = 3
linkcheck_ignore = [r"https://example\.org/", r"http://localhost"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
autodoc_docstring_signature = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
# A page of the project in code marks, and a section of it.
_PAGE = re.compile(r'`docs/([\w-]+)\.md`(, "([^"\n]+)")?')
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def title(name: str) -> str:
    """Returns the first heading of a page."""
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def link(found: re.Match) -> str:
    """Returns the Markdown of a link to the page, or to its section."""
    name, section = found[1], found[3]
    anchor = "#" + re.sub(r"[^\w -]", "", section).lower().replace(" ", "-") if section else ""
    return f"[{title(name)}{f': {section}' if section else ''}](/{name}.md{anchor})"


def with_links(text: str) -> str:
    """Returns a page whose names of other pages, outside of code blocks, are links."""
    blocks = [*_CODE.findall(text), ""]
    prose = [_PAGE.sub(link, part) for part in _CODE.split(text)]
    return "".join(part + block for part, block in zip(prose, blocks, strict=True))


def navigation(text: str) -> str:
    """Returns table-of-contents directives: one for each section of docs/index.md, with the pages that it lists."""
    trees = []
    for section in text.split("\n## ")[1:]:
        pages = re.findall(r"^\* \[.*?\]\(([\w/-]+)\.md\)", section, re.MULTILINE)
        trees += ["```{toctree}", ":hidden:", f":caption: {section.partition(chr(10))[0]}", "", *pages, "```", ""]
    return "\n".join(trees)


def prepare(app: Sphinx, name: str, source: list[str]) -> None:
    """Changes the Markdown of a page before it is parsed; an event handler of Sphinx."""
    del app
    more = "\n\n" + navigation(source[0]) if name == "index" else ""
    source[0] = with_links(source[0]) + more


def plain_docstring(app: Sphinx, kind: str, name: str, target: object, options: object, lines: list[str]) -> None:
    """Changes a docstring, which is plain text with code in backquotes, to reStructuredText; an event handler."""
    del app, name, target, options
    if "Fields:" in lines:  # For help(); each field has its own text here.
        del lines[lines.index("Fields:") :]
    for number, line in enumerate(lines):
        parts = re.split(r"`+([^`]*)`+", line)
        parts[::2] = [re.sub(r"([*|]|_\b)", r"\\\1", part) for part in parts[::2]]
        parts[1::2] = [f"``{part}``" for part in parts[1::2]]
        lines[number] = "".join(parts)
    if kind == "attribute":
        lines[:0] = ["..", ""]  # Napoleon takes what precedes a colon in the first line for the type.


def short_signature(app: Sphinx, kind: str, name: str, *more: object) -> tuple[str, None] | None:
    """Leaves out the signatures of a config's sections, whose fields follow; an event handler."""
    del app, more
    return ("", None) if kind == "class" and name.startswith("tfdist.config.") else None


def setup(app: Sphinx) -> None:
    """Registers the handlers; Sphinx calls it."""
    app.connect("source-read", prepare)
    app.connect("autodoc-process-docstring", plain_docstring, priority=100)  # Before napoleon's.
    app.connect("autodoc-process-signature", short_signature)
