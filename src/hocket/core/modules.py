"""Imports what a user names: `package.module:attr`, `folder/file.py:attr`, or an attribute of the
running program, `__main__:attr`."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hocket.errors import HocketError, UnimportableError, UnknownNameError
from hocket.system.text import account, did_you_mean

_MODULE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")
_FILE = re.compile(r"(.+\.py):([A-Za-z_][\w.]*)")
_importing: list[str] = []
"""Files that are being imported by their path now, the innermost last."""


@dataclass(frozen=True, slots=True)
class Target:
    """An attribute, with dots where it is inside of a class, of a module or of a file."""

    module: str
    """The module's name, or the file's path."""
    attribute: str
    is_file: bool


def target_of(name: str) -> Target | None:
    """What a name means; None where it is no `module:attr`, or where there is no such module. A
    file that is not there raises."""
    if found := _FILE.fullmatch(name):
        path = os.path.expanduser(found[1])
        if not os.path.isfile(path):
            raise UnknownNameError(f"There is no file {path!r} (from {os.getcwd()}).")
        return Target(path, found[2], is_file=True)
    if (found := _MODULE.fullmatch(name)) and _exists(found[1]):
        return Target(found[1], found[2], is_file=False)
    return None


def attribute(target: Target) -> Any:
    """The attribute itself. Whatever goes wrong while its module is imported comes as one error,
    with the lines of the user's own that led there."""
    try:
        found: Any = _load(target.module) if target.is_file else _module(target.module)
    except HocketError:
        raise
    except (Exception, SystemExit) as exc:
        raise UnimportableError(f"{target.module!r} cannot be imported: {account(exc)}") from exc
    for part in target.attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UnknownNameError(
                f"{'File' if target.is_file else 'Module'} {target.module!r} has no attribute "
                f"{target.attribute!r}.{did_you_mean(part, dir(found))}"
            ) from None
    return found


def names_in(path: str) -> list[str]:
    """The classes and functions that a file defines for others; nothing is imported."""
    try:
        with open(path, "rb") as file:
            body = ast.parse(file.read()).body
    except (OSError, ValueError, SyntaxError):
        return []
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [one.name for one in body if isinstance(one, kinds) and one.name[:1] != "_"]


def file_being_imported() -> str | None:
    """The file that is being imported by its path now: its code at the top runs, and must not begin
    what imported it once more."""
    return _importing[-1] if _importing else None


def _module(name: str) -> ModuleType:
    _reach(os.getcwd())
    return importlib.import_module(name)


def _load(path: str) -> ModuleType:
    """The module that a file is, by its path. It is the one that `import` would give where that is
    the same file, so that a class is not made twice."""
    path = os.path.realpath(path)
    stem = os.path.splitext(os.path.basename(path))[0]
    for known in ("__main__", stem, path):
        module = sys.modules.get(known)
        if module is not None and _is_file(getattr(module, "__file__", None), path):
            return module
    _reach(os.path.dirname(path))  # what the file imports lies beside it, as for a script
    spec = importlib.util.find_spec(stem) if stem.isidentifier() else None
    name = stem if spec is not None and _is_file(spec.origin, path) else path
    _importing.append(path)
    try:
        if name == stem:
            return importlib.import_module(stem)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None  # its name ends with .py
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module
    finally:
        _importing.pop()


def _is_file(found: str | None, path: str) -> bool:
    return found is not None and os.path.realpath(found) == path


def _exists(module: str) -> bool:
    _reach(os.getcwd())
    head = module.split(".")[0]
    return head in sys.modules or importlib.util.find_spec(head) is not None


def _reach(folder: str) -> None:
    """Let modules of a folder be imported."""
    if folder not in sys.path and not (folder == os.getcwd() and "" in sys.path):
        sys.path.insert(0, folder)
