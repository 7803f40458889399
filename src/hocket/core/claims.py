"""Whether what came from another machine, a container or a client is what its annotations claim.

A check is made from each annotation once. Text, bytes, numbers and truth values are told apart;
whole numbers have 64 bits; `Annotated[X, Within(...)]` bounds a number, or a length. What is
annotated as anything is plain data of bounded depth. To msgpack a list and a tuple are the same.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from hocket.errors import WireError

_DEEPEST = 32
"""Lists in lists that plain data may have."""
_EXACT = 1 << 53
"""Below it a whole number may stand for a float."""
_LISTS = (list, tuple)


class Within(NamedTuple):
    """The bounds of a number, or of the length of whatever has one. NaN is within none."""

    least: float
    most: float


Check = Callable[[Any], bool]
_WORD = Within(-(1 << 63), (1 << 63) - 1)
Count = Annotated[int, Within(0, (1 << 31) - 1)]
Share = Annotated[float, Within(0.0, 1.0)]
Seconds = Annotated[float, Within(-1e9, 1e9)]
Label = Annotated[str, Within(0, 300)]


def require(value: Any) -> None:
    """Raise WireError unless every field of a message, or of a dataclass, is what it claims."""
    for name, check in _checks(value.__class__).items():
        if not check(found := getattr(value, name)):
            raise WireError(f"{name} of a {type(value).__name__} is {found!r:.60}.")


@functools.cache
def _checks(kind: Any) -> Mapping[str, Check]:
    """The check of each field of a NamedTuple or a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    is_data = dataclasses.is_dataclass(kind)
    names = [f.name for f in dataclasses.fields(kind)] if is_data else kind._fields
    return {name: _check(hints[name]) for name in names}


@functools.cache
def _check(hint: Any) -> Check:
    """The check that an annotation stands for."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(*parts)
    if origin in (Union, UnionType):
        checks = tuple(map(_check, parts))
        return lambda value: any(check(value) for check in checks)
    if origin is Literal:
        return lambda value: type(value) is str and value in parts
    if origin is tuple and parts[-1] is not Ellipsis:
        return _row(list(map(_check, parts)))
    if origin in (list, tuple, Sequence):
        part = _check(parts[0])
        return lambda value: type(value) in _LISTS and all(map(part, value))
    if origin is Mapping:
        key, part = map(_check, parts)
        return lambda value: (
            type(value) is dict and all(map(key, value)) and all(map(part, value.values()))
        )
    if origin is np.ndarray:
        return lambda value: isinstance(value, np.ndarray)
    return _check_plain(hint)


def _check_plain(hint: Any) -> Check:
    """The check of an annotation without parts."""
    if hint is Any:
        return _is_plain
    if hint is int:
        return _bounded(int, _WORD)
    if hint is float:
        return lambda value: (
            type(value) is float or (type(value) is int and -_EXACT < value < _EXACT)
        )
    if hint in (str, bytes, bool, NoneType):
        return lambda value: type(value) is hint
    checks = list(_checks(hint).values())
    if issubclass(hint, tuple):
        return _row(checks)
    names = list(_checks(hint))
    return lambda value: (
        isinstance(value, hint)
        and all(check(getattr(value, name)) for name, check in zip(names, checks, strict=True))
    )


def _bounded(hint: Any, bounds: Within) -> Check:
    least, most = bounds
    if hint is int:
        return lambda value: type(value) is int and least <= value <= most
    check = _check(hint)
    if hint is float:
        return lambda value: check(value) and least <= value <= most
    return lambda value: check(value) and least <= len(value) <= most


def _row(checks: Sequence[Check]) -> Check:
    """A list with a check of its own for each place."""
    return lambda value: (
        isinstance(value, _LISTS)
        and len(value) == len(checks)
        and all(check(part) for check, part in zip(checks, value, strict=True))
    )


def _is_plain(value: Any, depth: int = 0) -> bool:
    """True for nothing, truth values, text, numbers, and lists and dicts of them."""
    if value is None or type(value) in (str, bool, float):
        return True
    if type(value) is int:
        return _WORD.least <= value <= _WORD.most
    if depth == _DEEPEST:
        return False
    if type(value) is dict:  # Keys of one kind: they can be sorted.
        return len(set(map(type, value))) < 2 and all(
            _is_plain(each, depth + 1) for pair in value.items() for each in pair
        )
    return type(value) in _LISTS and all(_is_plain(each, depth + 1) for each in value)
