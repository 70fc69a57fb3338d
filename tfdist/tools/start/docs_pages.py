"""Prints the pages of tfdist: `python -m tfdist docs [PAGE]`, such as `tfdist docs slurm`; without a page, their list.

`tfdist docs launch/slurm.sbatch` prints that file; this also works for other files that the pages name.
"""

import argparse
import re

from tfdist.config import tool_flags
from tfdist.tools.start import shipped

USAGE = "[PAGE]"
FOLDER = shipped.find("docs")


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the argument PAGE."""
    parser.add_argument("page", metavar="PAGE", nargs="?", default="", help="The page or file to print.")


def main(args: argparse.Namespace) -> None:
    """Prints the list of pages, or a page or file; raises ValueError if there is none of this name."""
    word = args.page
    if not word:
        order = re.findall(r"\]\(([\w-]+)\.md\)", (FOLDER / "index.md").read_text(encoding="utf-8"))
        width = max(map(len, order))
        print("The pages; tfdist docs PAGE prints one.\n")
        for name in dict.fromkeys(order):
            title = (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition("\n")[0]
            print(f"  {name:{width}}  {title.removeprefix('# ')}")
        return
    path = shipped.find(word if "/" in word else f"docs/{word.removesuffix('.md')}.md").resolve()
    folders = [shipped.find(folder).resolve() for folder in ("configs", "docs", "launch")]
    if not path.is_file() or not any(path.is_relative_to(folder) for folder in folders):
        raise ValueError(f"there is no page {word!r}. tfdist docs lists the pages.")
    print(path.read_text(encoding="utf-8"), end="")
