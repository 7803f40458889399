"""What a simulator's objects keep for each row: found, copied, and put back.

Managers, controllers and sensors keep clocks, targets, sums and buffers, as arrays with one entry
for each row. Which there are depends on the user's own terms, so they are not listed: objects are
walked, attribute by attribute. What is remembered is where an array is kept, its owner and its
name, and never the array alone: many terms bind a new one to the name in each step.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hocket.errors import SuspensionError

_PLAIN = (str, bytes, int, float, complex, type(None), np.generic)
_CODE = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(weakref.ReferenceType, weakref.ProxyType, weakref.CallableProxyType),
)
_CONTAINERS = (Mapping, list, tuple, deque)
_CLOSED = {
    *("torch", "numpy", "warp", "newton", "pxr", "mujoco", "sapien", "gymnasium", "logging"),
    *("enum", "threading", "functools", "inspect", "re", "pathlib", "omegaconf", "trimesh"),
}
"""Packages whose objects are not looked into: they keep nothing for rows, or something that an
adapter puts back by name."""


@dataclass(frozen=True, slots=True)
class Ring:
    """A buffer `[time, rows, ...]` that is never shifted: all rows share the place, kept in an
    attribute of the owner, that is written next."""

    head: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAxes:
    """Where the rows are in arrays of known classes. Elsewhere they are on the first axis, and an
    array that has as many entries on another one must not change while rows wait, unless its owner
    has `row_axes = {"name": axis}`."""

    first: tuple[str, ...] = ()
    """Packages whose classes have rows on the first axis, but for those named here."""
    others: Mapping[tuple[str, str], int | Ring | Callable[[Any], int]] = field(
        default_factory=dict
    )
    """By names of class and attribute; a function is asked with the owner."""
    latches: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    """Attributes, by names of class and attribute, that say for all rows at once that something is
    due: what was due before is due again where rows were put back."""
    skipped: frozenset[str] = frozenset()
    """Classes that hold views and caches alone."""
    but: frozenset[str] = frozenset()
    """Attributes that are looked into although they are of such a class."""


@dataclass(slots=True)
class HeldRows:
    """Entries of an array for some rows, copied; all of it where nobody says which axis has the
    rows."""

    axis: int | None
    values: Any
    head: Any = None
    """Where a ring stood then."""
    ring: Ring | None = None
    found: Any = None
    """The thing that was the array."""

    def put(self, array: Any, ids: Any, entries: Any, head: Any) -> None:
        """Write them into an array that is in its place now, a ring that stands at `head`."""
        assert self.axis is not None
        values = self.values
        if entries is not None:
            values = values[at_rows(values, self.axis, entries)]
        if head is not None:
            # All was moved on by as much as the head was.
            moved = head - self.head
            values = values[(moved.new_tensor(range(len(values))) - moved) % len(values)]
        array[at_rows(array, self.axis, ids)] = values


_Node = dict[Any, Any] | HeldRows | bool
"""What was found: the parts of an owner by name, an array, or True for a flag that was up."""


class RowState:
    """All arrays of rows that can be reached from some objects, but not through those in `skip`."""

    def __init__(
        self,
        roots: Mapping[str, Any],
        rows: int,
        *,
        axes: RowAxes | None = None,
        skip: Iterable[Any] = (),
    ) -> None:
        self._roots = dict(roots)
        self._rows = rows
        self._axes = axes or RowAxes()
        self._skip = list(skip)
        self._names: list[str] | None = None
        """Of the arrays that were found last, by class of the owner; None before the first time."""

    def take(self, ids: Any) -> dict[Any, Any]:
        """Copy what is kept for these rows, a tensor of indices."""
        walk = _Walk(self._rows, self._axes, ids, {id(thing): None for thing in self._skip}, [])
        taken = walk.owner(self._roots, None) or {}
        if self._names is not None and len(walk.names) > len(self._names):
            raise SuspensionError(
                f"{' and '.join(sorted({*walk.names} - {*self._names}))} appeared in a step that "
                "some rows did not make: nothing says what it was for them before. Make it where "
                "its owner is made, not when it is first needed."
            )
        self._names = walk.names
        return taken

    def give_back(self, ids: Any, taken: dict[Any, Any], entries: Any = None) -> None:
        """Make these rows what they were, in the arrays that are now where the others were.
        `entries`: which of the rows that were taken these are; all of them, in their order."""
        _Return(ids, entries, set()).owner(self._roots, taken, None, "")


@dataclass(slots=True)
class _Walk:
    rows: int
    axes: RowAxes
    ids: Any
    memo: dict[int, _Node | None]
    """What was found of each object, by its id; None while it is looked into."""
    names: list[str]

    def owner(self, thing: Any, named: Any) -> dict[Any, Any] | None:
        """Look into an object, or a container that belongs to the object `named`."""
        parts = {}
        for name, part in parts_of(thing).items():
            found = self._node(part, named, name)
            if found is not None:
                parts[name] = found
        return parts or None

    def _node(self, thing: Any, owner: Any, name: Any) -> _Node | None:
        if isinstance(thing, _CODE):
            return None
        if isinstance(thing, _PLAIN):
            is_up = thing is True and self._known(owner, name, self.axes.latches)
            return True if is_up else None
        key = id(thing)
        if key not in self.memo:
            self.memo[key] = None
            array = array_of(thing)
            if array is not None:
                self.memo[key] = self._array(thing, array, owner, name)
            elif isinstance(thing, _CONTAINERS):
                self.memo[key] = self.owner(thing, owner)
            elif self._is_open(thing, name):
                self.memo[key] = self.owner(thing, thing)
        found = self.memo[key]
        if isinstance(found, HeldRows):
            self.names.append(_named(owner, name))
        return found

    def _is_open(self, thing: Any, name: Any) -> bool:
        is_skipped = type(thing).__name__ in self.axes.skipped and name not in self.axes.but
        return not is_skipped and _package(thing) not in _CLOSED

    def _array(self, thing: Any, array: Any, owner: Any, name: Any) -> HeldRows | None:
        matching = [axis for axis, size in enumerate(array.shape) if size == self.rows]
        declared = getattr(type(owner), "row_axes", {}).get(name)
        if declared is None:
            declared = self._known(owner, name, self.axes.others)
        if callable(declared):
            declared = declared(owner)
        if (declared is None and not matching) or getattr(array, "requires_grad", False):
            return None
        if declared is None and matching != [0] and _package(owner) not in self.axes.first:
            return HeldRows(None, _copy(array), found=thing)
        ring = declared if isinstance(declared, Ring) else None
        axis = 1 if ring is not None else declared or 0
        if declared is not None and axis not in matching:
            raise SuspensionError(
                f"{_named(owner, name)} of shape {tuple(array.shape)} should have the {self.rows} "
                f"rows on axis {axis}, and has not."
            )
        strides = array.strides if isinstance(array, np.ndarray) else array.stride()
        # An array that was expanded has one entry for all rows.
        if axis not in matching or (self.rows > 1 and not strides[axis]):
            return None
        head = None if ring is None else _copy(getattr(owner, ring.head))
        return HeldRows(axis, array[at_rows(array, axis, self.ids)], head, ring, thing)

    def _known(self, owner: Any, name: Any, known: Mapping[tuple[str, str], Any]) -> Any:
        """What is said of an attribute, by the name of a class of its owner's."""
        names = ((made.__name__, name) for made in type(owner).__mro__)
        return next((known[each] for each in names if each in known), None)


@dataclass(slots=True)
class _Return:
    """The way back: the same names, from the same roots, in the objects that are there now."""

    ids: Any
    entries: Any
    done: set[tuple[int, int]]

    def owner(self, now: Any, node: dict[Any, Any], named: Any, path: str) -> Any:
        """Give back to an object that belongs to `named`; return it, or what takes its place."""
        if (id(node), id(now)) in self.done:
            return now
        self.done.add((id(node), id(now)))
        parts, changed = parts_of(now), {}
        for name, part in node.items():
            where = f"{path}.{name}" if path else str(name)
            given = self._given(parts.get(name), part, named, where)
            if given is not parts.get(name):
                changed[name] = given
        if changed and isinstance(now, tuple):
            made = [changed.get(index, part) for index, part in enumerate(now)]
            return type(now)(*made) if hasattr(now, "_fields") else tuple(made)
        is_container = isinstance(now, _CONTAINERS)
        for name, given in changed.items():
            if is_container:
                now[name] = given
            else:  # whether it is frozen or not
                object.__setattr__(now, name, given)
        return now

    def _given(self, now: Any, node: _Node, owner: Any, path: str) -> Any:
        if isinstance(node, bool):
            return True
        if isinstance(node, dict):
            return self.owner(now, node, owner if isinstance(now, _CONTAINERS) else now, path)
        array, then = array_of(now), array_of(node.found)
        if array is None or array.shape != then.shape or array.dtype != then.dtype:
            raise SuspensionError(
                f"{path} is something else after a step: rows that did not make the step cannot "
                "be given back what it was for them."
            )
        if node.axis is None:
            is_same = (array == node.values) | ((array != array) & (node.values != node.values))
            if not is_same.all():
                raise SuspensionError(
                    f"{path} of {type(owner).__name__}, an array {tuple(array.shape)}, changes, "
                    "and nothing says which of its axes has the rows. Run with another number of "
                    '--lanes, or write row_axes = {"name": axis} into its class.'
                )
            return now
        if now is not node.found and not _is_warp(now):
            # Others may hold what was bound to the name meanwhile: it is not written into. (Buffers
            # of Warp's change places, and stay what they are.)
            now = array = _copy(now)
        head = None if node.ring is None else getattr(owner, node.ring.head)
        node.put(array, self.ids, self.entries, head)
        return now


def at_rows(array: Any, axis: int, ids: Any) -> tuple[Any, ...]:
    """The index of the entries of rows in an array, where the array is."""
    is_numpys = isinstance(array, np.ndarray)
    return (*[slice(None)] * axis, ids.cpu().numpy() if is_numpys else ids.to(array.device))


def parts_of(thing: Any) -> dict[Any, Any]:
    """The parts of a container by key or index, and the attributes of an object by name."""
    if isinstance(thing, Mapping):
        return dict(thing)
    if isinstance(thing, _CONTAINERS):
        return dict(enumerate(thing))
    parts = dict(getattr(thing, "__dict__", {}))
    for made in type(thing).__mro__:
        slots = vars(made).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                parts[name] = getattr(thing, name)
    return parts


def array_of(thing: Any) -> Any:
    """A thing as an array of numpy's or torch's, in the same memory; None where it is neither nor
    an array of Warp's that torch knows."""
    if _is_warp(thing):
        try:
            return sys.modules["warp"].to_torch(thing)
        except (TypeError, RuntimeError):
            return None
    is_array = isinstance(thing, np.ndarray) or hasattr(type(thing), "new_tensor")
    return thing if is_array else None


def _is_warp(thing: Any) -> bool:
    return type(thing).__name__ == "array" and _package(thing) == "warp"


def _package(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]


def _named(owner: Any, name: Any) -> str:
    return f"{type(owner).__name__}.{name}"


def _copy(array: Any) -> Any:
    return array.copy() if isinstance(array, np.ndarray) else array.clone()
