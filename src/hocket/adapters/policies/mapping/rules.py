"""A mapping as data: for each key of the server's request, what of the observation makes it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.core.data import Array, Observation
from hocket.core.plugins import did_you_mean
from hocket.errors import ChunkShapeError, ConfigError, ObservationError

ROOT = "observation/"
"""The prefix of the keys of hocket's envs."""
Ranges = tuple[tuple[float, float], tuple[float, float]]
_PAIRS = ("slice", "resize", "clip")
"""Settings that are two numbers."""
_BITS = 22
_HALF = 1 << (_BITS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One key of a request. Steps run in the order of the attributes here."""

    sources: tuple[str, ...]
    """Keys of the observation; several are flattened and joined end to end."""
    otherwise: tuple[str, ...] = ()
    """Keys that stand for these, one for one, where the env has them instead."""
    slice: tuple[int, int] | None = None
    """Start and stop on the last axis."""
    rotate: int = 0
    """Degrees, counter-clockwise: 0, 90, 180 or 270."""
    resize: tuple[int, int] | None = None
    """Height and width; scaled to fit, centred on black. Makes the image uint8."""
    stretch: bool = False
    """Scale height and width by themselves, so that nothing is black."""
    range: Ranges | None = None
    """Two ranges: values go from the first to the second, linearly."""
    dtype: str | None = None
    layout: str = "hwc"
    """`hwc`, or `chw` for servers that want channels first."""
    size: int | None = None
    """Numbers that the value must have in all."""

    @property
    def is_image(self) -> bool:
        return self.resize is not None or self.rotate != 0 or self.layout == "chw"

    def find(self, keys: Container[str]) -> list[str | None]:
        """The env's key for each source, None where it has none."""
        found = [find_key(source, keys) for source in self.sources]
        if self.otherwise and None in found:
            instead = [find_key(source, keys) for source in self.otherwise]
            return instead if None not in instead else found
        return found

    def make(self, key: str, observation: Observation, owner: str) -> Array:
        """The value of this key, or ObservationError with the name of what is missing or wrong."""
        found = self.find(observation)
        for source, name in zip(self.sources, found, strict=True):
            if name is None:
                raise ObservationError(
                    f"The mapping {owner!r} makes {key!r} of {source!r}, which the env does not "
                    f"give.{did_you_mean(source, observation)} It gives: "
                    f"{', '.join(sorted(observation))}."
                )
        parts = [observation[name] for name in found if name is not None]
        value = parts[0] if len(parts) == 1 else np.concatenate([p.reshape(-1) for p in parts])
        if self.is_image and value.ndim != 3:
            raise ObservationError(
                f"The mapping {owner!r} makes the image {key!r} of {self.sources[0]!r}, whose "
                f"shape {value.shape} is not (height, width, channels)."
            )
        if self.slice is not None:
            value = value[..., self.slice[0] : self.slice[1]]
        if self.rotate:
            value = np.rot90(value, self.rotate // 90, axes=(0, 1))
        if self.resize is not None:
            scale = resize if self.stretch else resize_with_pad
            value = scale(as_uint8(value), *self.resize)
        if self.range is not None:
            value = _rescaled(value, self.range)
        if self.dtype is not None:
            value = value.astype(self.dtype, copy=False)
        if self.layout == "chw":
            value = np.moveaxis(value, -1, 0)
        if self.size is not None and value.size != self.size:
            raise ObservationError(
                f"The mapping {owner!r} makes {key!r} of {' + '.join(self.sources)}: that is "
                f"{value.size} numbers, and the server takes {self.size}."
            )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Gripper:
    """Which column of an action is the gripper, and how the server's numbers become the env's."""

    index: int = -1
    threshold: float | None = None
    """Above it is `closed`, else `open`; None maps `range` linearly instead."""
    opened: float = 0.0
    closed: float = 1.0
    range: Ranges | None = None

    def apply(self, actions: Array) -> None:
        column = actions[..., self.index]
        if self.range is not None:
            column = _rescaled(column, self.range)
        if self.threshold is not None:
            column = np.where(column > self.threshold, self.closed, self.opened)
        actions[..., self.index] = column


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRule:
    """How a server's actions become the env's."""

    slice: tuple[int, int] | None = None
    """Start and stop among the columns."""
    axis_angle: int | None = None
    """The first of three columns, roll, pitch and yaw about axes that stand still, that the env
    takes as an axis times its angle."""
    gripper: Gripper | None = None
    clip: tuple[float, float] | None = None

    def apply(self, chunk: Array, owner: str) -> Array:
        """The env's actions `[T, A]`, not shared with `chunk`."""
        if self.slice is not None:
            start, stop = self.slice
            if chunk.shape[-1] < stop:
                raise ChunkShapeError(
                    f"The mapping {owner!r} takes columns {start} to {stop} of the server's "
                    f"actions, which have {chunk.shape[-1]}. Is it the server's embodiment?"
                )
            chunk = chunk[..., start:stop]
        actions = np.array(chunk, dtype=np.result_type(chunk.dtype, np.float32))
        if self.axis_angle is not None:
            columns = slice(self.axis_angle, self.axis_angle + 3)
            actions[..., columns] = _axis_angles(actions[..., columns])
        if self.gripper is not None:
            self.gripper.apply(actions)
        if self.clip is not None:
            np.clip(actions, *self.clip, out=actions)
        return actions


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMapping:
    """A mapping made of rules; `request` and `actions` are what any mapping has."""

    name: str
    fields: Mapping[str, Field]
    prompt: str | None = "prompt"
    """The server's key for the prompt; None sends none."""
    nested: tuple[str, ...] = ()
    """`images` sends `images/x` as `{"images": {"x": ..}}`."""
    answer: ActionRule = dataclasses.field(default_factory=ActionRule)
    control_rate: float | None = None
    replan: int | None = None

    def missing(self, keys: Container[str]) -> str | None:
        """The first source that an env with these keys lacks, or None."""
        for field in self.fields.values():
            for source, found in zip(field.sources, field.find(keys), strict=True):
                if found is None:
                    return source
        return None

    @property
    def cameras(self) -> tuple[str, ...] | None:
        """The images that are read; None, which means all, where that depends on the env."""
        fields = [field for field in self.fields.values() if field.is_image]
        if any(field.otherwise for field in fields):
            return None
        sources = dict.fromkeys(s for field in fields for s in field.sources)
        return tuple(s if s.startswith(ROOT) else f"{ROOT}{s}" for s in sources)

    @property
    def action_size(self) -> int | None:
        return None if self.answer.slice is None else self.answer.slice[1] - self.answer.slice[0]

    def request(self, observation: Observation, prompt: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, field in self.fields.items():
            head, _, tail = key.partition("/")
            value = field.make(key, observation, self.name)
            if tail and head in self.nested:
                found.setdefault(head, {})[tail] = value
            else:
                found[key] = value
        if self.prompt is not None:
            found[self.prompt] = prompt
        return found

    def actions(self, chunk: Array) -> Array:
        return self.answer.apply(chunk, self.name)


def _rescaled(values: Array, ranges: Ranges) -> Array:
    (low, high), (new_low, new_high) = ranges
    return (values - low) * ((new_high - new_low) / (high - low)) + new_low


def _axis_angles(angles: Array) -> Array:
    """Roll, pitch and yaw `[..., 3]` as axes times their angles."""
    (a, b, c), (x, y, z) = np.cos(angles / 2).T, np.sin(angles / 2).T
    w = a * b * c + x * y * z
    axis = np.array(
        [x * b * c - a * y * z, a * y * c + x * b * z, a * b * z - x * y * c], angles.dtype
    )
    length = np.linalg.norm(axis, axis=0)
    angle = 2 * np.arctan2(length, w)
    scaled: Array = (axis * np.where(length > 0, angle / np.maximum(length, 1e-30), 2.0)).T
    return scaled


def find_key(source: str, keys: Container[str]) -> str | None:
    """The observation's key for a source: with `observation/` before it as in hocket's envs, or
    without as in a user's own loop; `a.b` stands for `a/b`."""
    for name in dict.fromkeys((source, source.replace(".", "/"))):
        bare = name.removeprefix(ROOT)
        for key in (name, bare, f"{ROOT}{bare}"):
            if key in keys:
                return key
    return None


def parse_mapping(name: str, data: Any) -> RuleMapping:
    """A mapping from plain data, as a YAML file holds it; unknown keys are errors."""
    top = _settings(
        name, data, ("request", "prompt", "nested", "actions", "control_rate", "replan")
    )
    request = top.get("request", {})
    fields = {
        str(key): _field(f"{name}: request.{key}", value)
        for key, value in _settings(f"{name}: request", request, request).items()
    }
    if not fields:
        raise ConfigError(f"{name}: `request` must name at least one key of the server's.")
    prompt = top.get("prompt", "prompt")
    rate, replan = top.get("control_rate"), top.get("replan")
    return RuleMapping(
        name=name,
        fields=fields,
        prompt=None if prompt is None else str(prompt),
        nested=tuple(top.get("nested", ())),
        answer=_answer(f"{name}: actions", top.get("actions", {})),
        control_rate=None if rate is None else float(rate),
        replan=None if replan is None else int(replan),
    )


def _field(where: str, value: Any) -> Field:
    plain = {"from": value} if isinstance(value, (str, list, tuple)) else value
    rule = _settings(where, plain, ["from", "or", *_names(Field)[2:]])
    sources = _keys(where, "from", rule.pop("from", ()))
    otherwise = _keys(where, "or", rule.pop("or", ()))
    if not sources:
        raise ConfigError(f"{where}: `from` must be a key of the env's observation, or several.")
    if otherwise and len(otherwise) != len(sources):
        raise ConfigError(f"{where}: `or` must name as many keys as `from`.")
    field = Field(sources=sources, otherwise=otherwise, **rule)
    if field.rotate not in (0, 90, 180, 270):
        raise ConfigError(f"{where}: rotate must be 0, 90, 180 or 270, not {field.rotate!r}.")
    if field.layout not in ("hwc", "chw"):
        raise ConfigError(f"{where}: layout must be hwc or chw, not {field.layout!r}.")
    if field.dtype is not None:
        try:
            np.dtype(field.dtype)
        except TypeError as exc:
            raise ConfigError(f"{where}: {field.dtype!r} is no dtype.") from exc
    return field


def _keys(where: str, name: str, value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, tuple) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"{where}: `{name}` must be a key of the env's observation, or several.")
    return found


def _answer(where: str, value: Any) -> ActionRule:
    rule = _settings(where, value, _names(ActionRule))
    if rule.get("gripper") is not None:
        gripper = _settings(f"{where}.gripper", rule["gripper"], _names(Gripper))
        rule["gripper"] = Gripper(**gripper)
    return ActionRule(**rule)


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _settings(where: str, found: Any, known: Collection[str]) -> dict[str, Any]:
    """What plain data sets, lists as tuples; unknown keys, and pairs that are none, are errors."""
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where} must be keys with values, not {found!r}.")
    for key, value in found.items():
        if key not in known:
            raise ConfigError(
                f"{where} has no setting {key!r}.{did_you_mean(str(key), known)} "
                f"It has: {', '.join(known)}."
            )
        is_pair = isinstance(value, (list, tuple)) and len(value) == 2
        if key in _PAIRS and value is not None and not is_pair:
            raise ConfigError(f"{where}: {key} must be two numbers, not {value!r}.")
    return {key: _frozen(value) for key, value in found.items()}


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value


def resize_with_pad(images: Array, height: int, width: int) -> Array:
    """uint8 images `[..., H, W, C]` scaled to fit and centred on black, as OpenPI's client does."""
    old_height, old_width = images.shape[-3:-1]
    if (old_height, old_width) == (height, width):
        return images
    ratio = max(old_width / width, old_height / height)
    new_height, new_width = int(old_height / ratio), int(old_width / ratio)
    small = resize(images, new_height, new_width)
    padded = np.zeros((*images.shape[:-3], height, width, images.shape[-1]), np.uint8)
    top, left = (height - new_height) // 2, (width - new_width) // 2
    padded[..., top : top + new_height, left : left + new_width, :] = small
    return padded


def resize(images: Array, height: int, width: int) -> Array:
    """uint8 images `[..., H, W, C]` at another size, as Pillow's bilinear filter gives it.

    Pillow works in two passes, along rows and along columns, with weights of 22 fractional bits and
    a rounding to 8 bits after each; when it shrinks, the filter widens, so that nothing aliases.
    This is the same to the bit, rows first; Pillows that run the columns first differ by at most
    one level. It stays beside Pillow because clients of policy servers need no Pillow, and because
    the tests hold it to Pillow's two passes bit by bit.
    """
    if images.dtype != np.uint8:
        raise ValueError(f"resize takes uint8 images, not {images.dtype}")
    return _along(_along(images, width, -2), height, -3)


def as_uint8(images: Array) -> Array:
    """Float images in [0, 1] as uint8, cut off rather than rounded, as OpenPI's client does."""
    if images.dtype.kind == "f":
        return (255 * images).astype(np.uint8)
    return images.astype(np.uint8, copy=False)


def _along(images: Array, size: int, axis: int) -> Array:
    if images.shape[axis] == size:
        return images
    sources, weights = _filter(images.shape[axis], size)
    shape = [1] * images.ndim
    shape[axis] = size
    total: Array = np.full((), _HALF, np.int32)
    for tap in range(sources.shape[1]):
        weight = weights[:, tap].reshape(shape)
        total = total + np.take(images, sources[:, tap], axis=axis) * weight
    scaled: Array = (total >> _BITS).astype(np.uint8)
    return scaled


@functools.lru_cache(maxsize=64)
def _filter(old: int, new: int) -> tuple[Array, Array]:
    """For each new pixel the old pixels `[new, taps]` that it is made of, and their weights."""
    scale = old / new
    stretch = max(scale, 1.0)
    taps = math.ceil(stretch) * 2 + 1
    sources = np.zeros((new, taps), np.intp)
    weights = np.zeros((new, taps), np.int32)
    for pixel in range(new):
        centre = (pixel + 0.5) * scale
        first = max(int(centre - stretch + 0.5), 0)
        last = min(int(centre + stretch + 0.5), old)
        raw = [max(0.0, 1.0 - abs((at - centre + 0.5) / stretch)) for at in range(first, last)]
        whole = sum(raw)
        for tap, weight in enumerate(raw):
            sources[pixel, tap] = first + tap
            weights[pixel, tap] = int(0.5 + weight / whole * (1 << _BITS))
    used = int((weights != 0).any(axis=0).nonzero()[0][-1]) + 1
    return sources[:, :used], weights[:, :used]
