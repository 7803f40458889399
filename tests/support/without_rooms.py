"""A plug-in for a pytest that tests hocket without some of its rooms (`-p support.without_rooms`).

A file of tests is about a room when it, or a file of tests/support that it imports, imports from
the room. What is about a room that is gone is left out.
"""

from __future__ import annotations

import ast
import functools
import os
from pathlib import Path

import pytest

import hocket
from hocket.rooms import ROOMS, is_here

WITHOUT = "HOCKET_TEST_WITHOUT"
"""The variable that says which rooms are gone."""
TESTS = Path(__file__).parent.parent
GONE = tuple(room for room in ROOMS if not is_here(room))


@functools.cache
def rooms_of(file: Path) -> frozenset[str]:
    """The rooms that a file of tests is about."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names)):
                found |= {r for r in ROOMS if f"{name}.".startswith(f"hocket.{r}.")}
                beside = TESTS / f"{name.replace('.', '/')}.py"
                if name.startswith("support.") and beside.is_file():
                    found |= rooms_of(beside)
    return frozenset(found)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files that are about what is gone; leave the rest to others."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and rooms_of(collection_path) & set(GONE) else None


def pytest_configure() -> None:
    """Refuse to test a hocket that has what should be gone."""
    if (wanted := os.environ[WITHOUT]) != ",".join(GONE):
        raise pytest.UsageError(f"{wanted} should be gone of {hocket.__file__}, not {GONE}.")
