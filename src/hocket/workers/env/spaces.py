"""Turns observations of any space into flat arrays, and chunks into actions of any space that can
be driven.

Spaces are recognised by the names of their classes, not by isinstance: a simulator in another
interpreter may come with gym instead of gymnasium, or with spaces of its own that are subclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from hocket.core.data import Array, Observation
from hocket.core.specs import ActionSpec, ArraySpec
from hocket.errors import ActionSpaceError, ChunkShapeError, ChunkValueError, ObservationError
from hocket.system.text import sentence

ROOT = "observation"
PROMPT = "prompt"
_REFUSED = ("Text", "Sequence", "Graph", "OneOf")
SLACK = 0.01
"""How far outside of a bounded Box an action may lie, as a share of its range, before that is worth
a word: what rounding and the last layer of a network do. Where one side has no bound the range
counts as 1."""
Flaw = Literal["", "outside", "not finite"]


def check_observation_space(space: Any, path: str = "") -> None:
    """Raise ObservationError for a space (at `path`) whose values have no fixed shape."""
    kind = _kind(space, _REFUSED)
    if kind is not None and path != PROMPT:
        raise ObservationError(
            f"The observation space has a {kind} space at {path or 'its root'!r}, which has no "
            f"fixed shape. Wrap the env so that it gives arrays (text is read at key 'prompt')."
        )
    inner = getattr(space, "spaces", ())
    for key, value in inner.items() if isinstance(inner, Mapping) else enumerate(inner):
        check_observation_space(value, f"{path}/{key}" if path else str(key))


def flatten(observation: Any) -> tuple[Observation, str | None]:
    """The arrays of an env's observation under slash keys, and its prompt where it has one.

    Keys that have a slash already are kept; others go under `observation/`. The arrays may be the
    env's own: copy them before its next step.
    """
    arrays: Observation = {}
    prompt: str | None = None
    if isinstance(observation, Mapping):
        for key, value in observation.items():
            if key == PROMPT and isinstance(value, str):
                prompt = value
            else:
                _gather(arrays, str(key) if "/" in str(key) else f"{ROOT}/{key}", value)
    elif isinstance(observation, (tuple, list)) and any(_is_nested(v) for v in observation):
        _gather(arrays, ROOT, observation)
    else:
        array = _array(ROOT, observation)
        arrays[f"{ROOT}/image" if is_image(array) else f"{ROOT}/state"] = array
    return arrays, prompt


def is_image(array: Array) -> bool:
    """True if this is a picture: uint8, height x width x 1, 3 or 4 channels."""
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] in (1, 3, 4)


def choose(arrays: Mapping[str, Array], reads: tuple[str, ...] | None) -> dict[str, Array]:
    """The keys that the policy reads; None means all."""
    if reads is None:
        return dict(arrays)
    chosen = {}
    for key in reads:
        if key == PROMPT:
            continue
        if key not in arrays:
            raise ObservationError(
                f"The observation has no key {key!r}, which the policy reads. It has: "
                f"{', '.join(sorted(arrays))}."
            )
        chosen[key] = arrays[key]
    return chosen


def array_specs(arrays: Observation) -> dict[str, ArraySpec]:
    return {
        key: ArraySpec(shape=array.shape, dtype=array.dtype.str)
        for key, array in sorted(arrays.items())
    }


def _is_nested(value: Any) -> bool:
    return isinstance(value, (Mapping, tuple, list, np.ndarray))


def _gather(arrays: Observation, key: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _gather(arrays, f"{key}/{name}", inner)
    elif isinstance(value, (tuple, list)) and any(_is_nested(v) for v in value):
        for index, inner in enumerate(value):
            _gather(arrays, f"{key}/{index}", inner)
    else:
        arrays[key] = _array(key, value)


def _array(key: str, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except Exception as exc:
        raise ObservationError(
            f"The env gives {key!r} as a {type(value).__name__} that is no array: {sentence(exc)}"
        ) from exc
    if array.dtype.kind not in "biuf":
        raise ObservationError(
            f"The env gives {key!r} as a {type(value).__name__} (dtype {array.dtype}); only arrays "
            f"of numbers can be observed. Text is read at key 'prompt'."
        )
    return array


class Drive:
    """Turns rows of numbers into actions of an env's action space: a Box, Discrete, MultiDiscrete
    or MultiBinary, or a Dict of nothing but one of these."""

    def __init__(self, space: Any) -> None:
        self.keys, inner = _only_space(space)
        """Of the dicts that an action is given in, the innermost first."""
        kind = _kind(inner, ("Box", "Discrete", "MultiDiscrete", "MultiBinary"))
        if kind is None:
            raise ActionSpaceError(
                f"The action space {space!r} is a {type(space).__name__}, which a chunk of numbers "
                f"cannot drive. Box, Discrete, MultiDiscrete, MultiBinary and a Dict of one of "
                f"these can be driven: wrap the env so that it takes one of them."
            )
        self.spec = _action_spec(inner, kind)
        most = float(np.finfo(np.float64).max)
        self._least, self._most = np.full(self.spec.size, -most), np.full(self.spec.size, most)
        if kind == "Box":
            span = self.spec.high - self.spec.low
            slack = SLACK * np.where(np.isfinite(span), span, 1.0)
            self._least = np.maximum(self.spec.low - slack, -most)
            self._most = np.minimum(self.spec.high + slack, most)

    def dress(self, action: Any) -> Any:
        """An action as the env takes it: inside of the dicts that its space is made of."""
        for key in self.keys:
            action = {key: action}
        return action

    def flaw(self, actions: bytes | Array) -> Flaw:
        """What is wrong with the numbers of some actions, the worst first; empty for nothing."""
        rows = np.frombuffer(actions, "<f8") if isinstance(actions, bytes) else actions
        if rows.size % self.spec.size:
            return ""  # No whole actions, as `decode` says.
        rows = rows.reshape(-1, self.spec.size)
        # A NaN is neither above nor below a bound, and an infinite number is outside of any.
        if not rows.size or (
            (rows.min(axis=0) >= self._least).all() and (rows.max(axis=0) <= self._most).all()
        ):
            return ""
        return "outside" if np.isfinite(rows).all() else "not finite"

    def strays(self, actions: Array) -> Array:
        """Which actions `[n, ...]` lie outside of the space, bool `[n]`."""
        rows = actions.reshape(-1, self.spec.size)
        return np.asarray(((rows < self._least) | (rows > self._most)).any(axis=1))

    def decode(self, data: bytes | Array, count: int) -> Array:
        """A chunk off the wire, whose numbers are finite, as `[count]` actions, each in the env's
        own shape and dtype."""
        numbers = np.frombuffer(data, "<f8")
        if numbers.size != count * self.spec.size:
            raise ChunkShapeError(
                f"A chunk of {count} actions came with {numbers.size} numbers; the env needs "
                f"{self.spec.size} for each action."
            )
        rows = numbers.reshape(count, self.spec.size)
        if np.dtype(self.spec.dtype).kind in "iub":
            rows = self._whole(rows)
        return rows.astype(self.spec.dtype).reshape(count, *self.spec.shape)

    def takes(self, chunks: Array) -> bool:
        """True if chunks `[B, k, A]` need no decoding beyond a change of dtype and shape."""
        is_fit = chunks.ndim == 3 and chunks.shape[2] == self.spec.size
        # Whole numbers are rounded, and may be out of range.
        return is_fit and np.dtype(self.spec.dtype).kind == "f"

    def _whole(self, rows: Array) -> Array:
        whole = np.rint(rows)
        if (whole < self.spec.low.ravel()).any() or (whole > self.spec.high.ravel()).any():
            raise ChunkValueError(
                f"A chunk has actions outside of the env's {self.spec.kind} action space "
                f"({self.spec.low.ravel().tolist()} to {self.spec.high.ravel().tolist()})."
            )
        return whole


def _only_space(space: Any) -> tuple[tuple[str, ...], Any]:
    """The one space inside of Dicts with a single key each, and these keys, innermost first."""
    inner = getattr(space, "spaces", None)
    if isinstance(inner, Mapping) and len(inner) == 1:
        key, value = next(iter(inner.items()))
        keys, found = _only_space(value)
        return (*keys, key), found
    return (), space


def _action_spec(space: Any, kind: str) -> ActionSpec:
    if kind == "Box":
        low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
        shape, dtype = tuple(space.shape), np.dtype(space.dtype)
    elif kind == "Discrete":
        start = int(getattr(space, "start", 0))
        low, high = np.array([start], np.float64), np.array([start + int(space.n) - 1], np.float64)
        shape, dtype = (), np.dtype(np.int64)
    elif kind == "MultiDiscrete":
        counts = np.asarray(space.nvec)
        low = np.asarray(getattr(space, "start", np.zeros_like(counts)), np.float64)
        high = low + counts - 1
        shape, dtype = tuple(counts.shape), np.dtype(getattr(space, "dtype", np.int64))
    else:
        shape, dtype = tuple(space.shape), np.dtype(np.int8)
        low, high = np.zeros(shape), np.ones(shape)
    name: Literal["box", "discrete"] = "box" if kind == "Box" else "discrete"
    size = int(np.prod(shape, dtype=int))
    return ActionSpec(
        size=size, kind=name, shape=shape, dtype=dtype.str, low=low.ravel(), high=high.ravel()
    )


def _kind(space: Any, names: tuple[str, ...]) -> str | None:
    for cls in type(space).__mro__:
        if cls.__name__ in names:
            return cls.__name__
    return None
