"""Draws docs/architecture.svg, the packages of tfdist and their imports, from the source itself.

usage: python docs/draw_architecture.py

An arrow means "imports". Imports that follow from other arrows are not drawn; the last line of each box lists all of
them. Boxes and captions are chosen here; arrows and lists of imports are read from the source.
"""

import ast
import dataclasses
import pathlib
import re
from collections.abc import Iterable
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"
WIDTH, HEIGHT = 1280, 958
# Mean advance of a character in sans-serif fonts, as a fraction of the font size; a wide font is assumed.
ADVANCE = 0.55


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle of the picture, in pixels from the upper left corner."""

    x: int
    y: int
    width: int
    height: int
    color: str
    caption: str


BLUE, GREEN, ORANGE, VIOLET, GREY, WHITE = "#dbe9fb", "#dff3e4", "#fdebd3", "#ece4f9", "#eceff3", "#ffffff"
# Entry points: modules of the top level and commands. Drawn above the packages that they import.
ENTRY_POINTS = {
    "__init__": ("import tfdist", Box(240, 84, 260, 66, WHITE, "for scripts: connect, fit ...")),
    "run": ("python -m tfdist.run", Box(30, 84, 204, 66, WHITE, "an unchanged script")),
    "main": ("python -m tfdist.main", Box(510, 84, 220, 66, WHITE, "trains or evaluates")),
    "__main__": ("python -m tfdist TOOL", Box(740, 84, 240, 66, WHITE, "doctor, scaling ...")),
    "launch.__main__": ("python -m tfdist.launch", Box(1000, 84, 240, 66, WHITE, "several local workers")),
}
PACKAGES = {
    "keras_fit": Box(240, 196, 260, 112, VIOLET, "model.fit on all workers, for compiled Keras models"),
    "tools": Box(740, 196, 240, 112, VIOLET, "commands that check, measure and compare"),
    "zoo": Box(40, 354, 180, 134, WHITE, "models, sources, objectives that configs name"),
    "training": Box(240, 354, 540, 134, BLUE, "the loop, one step, evaluation, callbacks, non-finite values"),
    "launch": Box(820, 354, 420, 134, VIOLET, "starts the workers of one machine, restarts them"),
    "data": Box(40, 540, 260, 134, GREEN, "batches as a function of (seed, epoch, position)"),
    "checkpoint": Box(320, 540, 240, 134, GREEN, "complete or absent; written in the background"),
    "cluster": Box(600, 540, 640, 134, ORANGE, "finds and connects the workers, detects lost ones, stops processes"),
    "report": Box(140, 712, 300, 92, GREY, "console, metrics.jsonl, TensorBoard"),
    "config": Box(40, 842, 1200, 92, GREY, "every field that a user may set; names functions by dotted path"),
}
SUBPACKAGES = {
    "cluster.discovery": "variables -> rank, addresses",
    "cluster.control": "rendezvous, heartbeats",
    "training.step": "forward, backward, all-reduce, update",
    "training.features": "optional features, one file each",
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Read from the source: packages and subpackages, and the imports between them.

    `imports` maps every package and entry point to the packages that it imports, within functions too.
    """

    packages: frozenset[str]
    imports: dict[str, frozenset[str]]

    def drawn(self) -> list[tuple[str, str]]:
        """The arrows that do not follow from others, sorted."""
        return sorted(
            (start, end)
            for start, ends in self.imports.items()
            for end in ends
            if not any(end in self._reached(other) for other in ends - {end})
        )

    def _reached(self, package: str) -> set[str]:
        found, waiting = set(), [package]
        while waiting:
            for other in self.imports.get(waiting.pop(), frozenset()) - found:
                found.add(other)
                waiting.append(other)
        return found


def read_package(folder: pathlib.Path) -> Architecture:
    """Reads the packages in `folder` and their imports from the source files.

    Args:
      folder: such as tfdist/. Its folders are the packages, and its modules the entry points.
    """
    packages, imports = set(), {}
    for path in sorted(folder.rglob("*.py")):
        # They name the folder configs/ and modules that are gone, and import neither.
        if path in (folder / "configs.py", folder / "config" / "removed.py"):
            continue
        source, parts = path.read_text(), path.relative_to(folder).with_suffix("").parts
        names = [".".join(parts[:length]) for length in range(1, len(parts))] or [parts[0]]
        packages.update(names)
        found = {package for package in _imported_packages(source, folder) if package != parts[0]}
        imports[parts[0]] = imports.get(parts[0], frozenset()) | found
    if (folder / "launch" / "__main__.py").exists():
        imports["launch.__main__"] = frozenset({"launch"})
    return Architecture(frozenset(packages), imports)


def _imported_packages(source: str, folder: pathlib.Path) -> set[str]:
    """The packages that a module imports; dotted names in strings count, as importlib is given them."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and re.fullmatch(r"\w+(\.\w+)+", f"{node.value}"):
            names.add(str(node.value))
    parts = [name.split(".") for name in names]
    packages = {name[1] for name in parts if name[0] == folder.name and len(name) > 1}
    return {package for package in packages if (folder / package).is_dir()}


def draw(architecture: Architecture) -> str:
    """Returns the picture as SVG; the same text for the same architecture.

    Raises:
      ValueError: a package or an entry point has no box, a box has no package or subpackage, or an import points
        upwards.
    """
    found = {name for name in architecture.packages if "." not in name} | {"launch.__main__"}
    if found != ENTRY_POINTS.keys() | PACKAGES.keys():
        raise ValueError(f"boxes and packages differ: {sorted(found ^ (ENTRY_POINTS.keys() | PACKAGES.keys()))}")
    if gone := SUBPACKAGES.keys() - architecture.packages:
        raise ValueError(f"there are no subpackages {sorted(gone)}")
    boxes = PACKAGES | {name: box for name, (_, box) in ENTRY_POINTS.items()}
    parts = [_text(40, 48, "tfdist: ten packages and five entry points", 24, weight="bold")]
    parts.append(_text(WIDTH - 40, 48, "an arrow means: imports", 14, anchor="end", color="#5b6675"))
    for start, end in architecture.drawn():
        parts.append(_arrow(boxes[start], boxes[end], f"{start} -> {end}"))
    for name, (title, box) in ENTRY_POINTS.items():
        parts += [_rectangle(box), _text(box.x + 14, box.y + 27, title, 15, mono=True, weight="bold")]
        parts += _wrapped(box, box.y + 49, box.caption)
        parts[-1] += f"\n<!-- {name} imports {_listed(architecture.imports[name])} -->"
    for name, box in PACKAGES.items():
        parts += _package(name, box, architecture)
    style = "font-family: 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" style="{style}">'
    marker = '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    marker = f'<defs>{marker}<path d="M0 1 L9 5 L0 9 z" fill="#5b6675"/></marker></defs>'
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#fbfcfd"/>'
    return "\n".join([head, marker, paper, *parts, "</svg>"]) + "\n"


def _package(name: str, box: Box, architecture: Architecture) -> list[str]:
    """One box: name, caption, subpackages, and the packages that it imports."""
    parts = [_rectangle(box), _text(box.x + 14, box.y + 28, f"{name}/", 18, mono=True, weight="bold")]
    parts += _wrapped(box, box.y + 50, box.caption)
    subpackages = {key: text for key, text in SUBPACKAGES.items() if key.split(".")[0] == name}
    parts += _side_by_side(box, subpackages)
    listed = f"imports {_listed(architecture.imports[name])}"
    if len(listed) * 12 * ADVANCE > box.width - 28:
        others = f"imports all but {_listed(PACKAGES.keys() - {name} - architecture.imports[name])}"
        listed = min(listed, others, key=len)
    parts.append(_text(box.x + 14, box.y + box.height - 12, listed, 12, color="#5b6675"))
    parts[-1] += f"\n<!-- {name} imports {_listed(architecture.imports[name])} -->"
    return parts


def _listed(packages: Iterable[str]) -> str:
    return ", ".join(sorted(packages)) or "no other package"


def _side_by_side(box: Box, subpackages: dict[str, str]) -> list[str]:
    """The subpackages of a package, in one row."""
    count = max(len(subpackages), 1)
    parts, width = [], (box.width - 14 * (count + 1)) // count
    for index, (name, text) in enumerate(subpackages.items()):
        parts += _inner(Box(box.x + 14 + index * (width + 14), box.y + 60, width, 44, WHITE, text), name)
    return parts


def _inner(box: Box, name: str) -> list[str]:
    title = f"{name.split('.')[1]}/"
    return [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="5" fill="#ffffff" '
        'fill-opacity="0.75"/>',
        _text(box.x + 10, box.y + 18, title, 13, mono=True, weight="bold"),
        _text(box.x + 10, box.y + 34, box.caption, 12, color="#3c4653"),
    ]


def _rectangle(box: Box) -> str:
    shape = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8"'
    return f'<rect {shape} fill="{box.color}" stroke="#8b97a7"/>'


def _wrapped(box: Box, y: int, text: str, size: int = 14) -> list[str]:
    """The lines of a caption that fit into a box, from `y` on downwards."""
    lines, limit = [""], int((box.width - 28) / (size * ADVANCE))
    for word in text.split():
        if len(f"{lines[-1]} {word}".strip()) > limit:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return [_text(box.x + 14, y + 18 * index, line, size) for index, line in enumerate(lines)]


def _text(
    x: int,
    y: int,
    text: str,
    size: int,
    *,
    mono: bool = False,
    weight: str = "normal",
    anchor: str = "start",
    color: str = "#1d2530",
) -> str:
    family = " font-family=\"'DejaVu Sans Mono', Menlo, Consolas, monospace\"" if mono else ""
    look = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{color}"{family}'
    return f'<text x="{x}" y="{y}" {look}>{escape(text)}</text>'


def _arrow(start: Box, end: Box, label: str) -> str:
    """A line from the lower edge of one box to the upper edge of another: vertical if they overlap."""
    if start.y + start.height >= end.y:
        raise ValueError(f"{label} points upwards: move a box, or cut the import")
    free = _free_stretch(start, end)
    if free is not None:
        x1 = x2 = sum(free) // 2
    elif start.x > end.x:
        x1, x2 = start.x + 24, end.x + end.width - 24
    else:
        x1, x2 = start.x + start.width - 24, end.x + 24
    y1, y2 = start.y + start.height, end.y - 1
    line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#5b6675" stroke-width="1.8"'
    return f'{line} marker-end="url(#tip)"><title>{escape(label)}</title></line>'


def _free_stretch(start: Box, end: Box) -> tuple[int, int] | None:
    """The widest range of x in which a vertical line from `start` to `end` meets no other box."""
    left, right = max(start.x, end.x), min(start.x + start.width, end.x + end.width)
    between = [box for box in PACKAGES.values() if start.y < box.y and box.y + box.height < end.y]
    edges = [
        left,
        *(edge for box in sorted(between, key=lambda box: box.x) for edge in (box.x, box.x + box.width)),
        right,
    ]
    stretches = [(max(a, left), min(b, right)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    widest = max(stretches, key=lambda stretch: stretch[1] - stretch[0])
    return widest if widest[0] < widest[1] else None


if __name__ == "__main__":
    PICTURE.write_text(draw(read_package(ROOT / "tfdist")))
