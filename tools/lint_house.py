#!/usr/bin/env python3
"""Hold the limits of the house: names, sizes and what knows of what. Run by `make lint`.

Prints what is over a limit, a line each, and exits with 1 where there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src" / "hocket"
FILE_LINES = 400
FOLDER_LINES = 3_000
FOLDER_MODULES = 15
PARAMETERS = 8
"""Parameters of an `__init__` that somebody wrote, besides self. Those that dataclasses generate
are the fields of settings, rows and reports."""
BARE = ("Any", "Any | None", "typing.Any")
CORE_KNOWS = ("core", "system", "errors")
"""What modules of core/ may name."""


class Fault(NamedTuple):
    where: str
    what: str


class Source(NamedTuple):
    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(SOURCE).as_posix()

    def at(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}"


def sizes(sources: list[Source]) -> Iterator[Fault]:
    """Files and folders that are too large; a folder's sub-folders are counted by themselves."""
    modules: defaultdict[str, list[int]] = defaultdict(list)
    for source in sources:
        lines = source.text.count("\n")
        if lines > FILE_LINES:
            yield Fault(source.name, f"{lines} lines, at most {FILE_LINES}: split it by noun")
        modules[source.path.parent.relative_to(SOURCE).as_posix()].append(lines)
    for folder, counts in sorted(modules.items()):
        if len(counts) - 1 > FOLDER_MODULES:  # every folder has an __init__
            yield Fault(f"{folder}/", f"{len(counts) - 1} modules, at most {FOLDER_MODULES}")
        if sum(counts) > FOLDER_LINES:
            yield Fault(f"{folder}/", f"{sum(counts)} lines of its own, at most {FOLDER_LINES}")


def classes(sources: list[Source]) -> Iterator[Fault]:
    """Public class names with a second meaning."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(source.at(node))
    for name, places in sorted(homes.items()):
        if len(places) > 1:
            yield Fault(places[0], f"class {name} is also {', '.join(places[1:])}")


def parameters(source: Source) -> Iterator[Fault]:
    """Constructors that take too much."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            taken = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            if len(taken) - 1 > PARAMETERS:
                yield Fault(source.at(node), f"__init__ takes {len(taken) - 1}, not {PARAMETERS}")


def untyped(source: Source) -> Iterator[Fault]:
    """Fields that say Any, outside adapters. A field that holds what an optional library made names
    the library's type, imported under TYPE_CHECKING."""
    if source.name.startswith("adapters/"):
        return
    nodes = list(ast.walk(source.tree))
    bodies = [part for node in nodes if isinstance(node, ast.ClassDef) for part in node.body]
    own = [node for node in nodes if isinstance(getattr(node, "target", None), ast.Attribute)]
    for node in bodies + own:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) in BARE:
            yield Fault(source.at(node), f"the field {ast.unparse(node.target)} is Any")


def upward(source: Source) -> Iterator[Fault]:
    """Strings in core/ that name a module above it."""
    if not source.name.startswith("core/"):
        return
    above = {path.stem for path in SOURCE.iterdir()} - {*CORE_KNOWS, "__init__"}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for found in re.findall(r"\bhocket[./](\w+)", node.value):
                if found in above:
                    yield Fault(source.at(node), f"names hocket.{found}, which is above core")


def main() -> int:
    paths = sorted(SOURCE.rglob("*.py"))
    sources = [Source(path, text := path.read_text(), ast.parse(text)) for path in paths]
    faults = [*sizes(sources), *classes(sources)]
    for check in (parameters, untyped, upward):
        faults += [fault for source in sources for fault in check(source)]
    for fault in faults:
        print(f"src/hocket/{fault.where}: {fault.what}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
