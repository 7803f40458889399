"""Everything that an evaluation is, as one value."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hocket.core import plugins
from hocket.engine.chunk_rules import make_rule
from hocket.errors import ConfigError
from hocket.records.video.selection import VideoSelection


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Everything that an evaluation is; saved with the run, and enough to run it again."""

    env: tuple[str, ...]
    policy: str
    episodes: int = 10
    """Of each task."""
    seed: int = 0
    """Of each task's first episode; the next ones count up."""
    lanes: int | Literal["auto"] = "auto"
    replan: int | None = None
    ensemble: float | None = None
    exact: bool = False
    max_steps: int | None = None
    retries: int = 2
    step_timeout_s: float = 60.0
    worker_memory: int | None = None
    recycle_after: int | None = None
    env_python: str | None = None
    policy_python: str | None = None
    policy_devices: tuple[str, ...] = ()
    until: Literal["done", "decided"] = "done"
    """`decided` stops when the comparison with `against` is decided; `episodes` is then the cap."""
    against: str | None = None
    """The run folder to compare with."""
    alpha: float = 0.05
    """How often a decision may be wrong where there is no difference."""
    sequential: Literal["paired", "step"] = "paired"
    """The test that decides: on pairs, or STEP's, which ignores the pairing."""
    record: Literal["none", "numbers", "full"] = "numbers"
    """What is kept of each step in the run folder; `full` adds every camera's picture."""
    video: str = "first:1"
    """Which episodes get a video: `none`, `first:N` of each task, `failures` or `all`."""
    video_overlay: bool = False
    env_config: Mapping[str, Any] = field(default_factory=dict)
    policy_config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if not _is_of(getattr(self, name), hint):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be {_told(hint)}.")
        for name, low in (("episodes", 1), ("retries", 0), ("max_steps", 1), ("recycle_after", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} is {value}; it must be at least {low}.")
        if not self.env:
            raise ConfigError("No env is named. Give one, as in --env metaworld:mt10.")
        if len(set(self.env)) < len(self.env):
            raise ConfigError(f"An env is named twice in {', '.join(self.env)}.")
        if self.lanes != "auto" and self.lanes < 1:
            raise ConfigError(f"lanes is {self.lanes}; it must be at least 1, or 'auto'.")
        if self.step_timeout_s <= 0:
            raise ConfigError(f"step_timeout_s is {self.step_timeout_s}; it must be above 0.")
        if (self.until == "decided") != (self.against is not None):
            raise ConfigError("until='decided' and against=RUN go together: give both, or none.")
        if self.sequential not in ("paired", "step"):
            raise ConfigError(f"sequential is {self.sequential!r}; it is 'paired' or 'step'.")
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha is {self.alpha}; it must lie between 0 and 1.")
        VideoSelection.parse(self.video)
        make_rule(self.replan, self.ensemble)

    def to_plain(self) -> dict[str, Any]:
        """As values that YAML and JSON know."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {key: _plain(value) for key, value in plain.items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> EvalConfig:
        """From plain values; unknown keys are errors."""
        known = [f.name for f in dataclasses.fields(cls)]
        for key in plain:
            if key not in known:
                raise ConfigError(
                    f"A run has no setting {key!r}.{plugins.did_you_mean(key, known)}"
                )
        values = dict(plain)
        for key in ("env", "policy_devices"):
            value = values.get(key)
            if isinstance(value, str):
                values[key] = tuple(part for part in value.split(",") if part)
            elif value is not None:
                values[key] = tuple(value)
        try:
            return cls(**values)
        except TypeError as exc:
            raise ConfigError(f"The configuration is wrong: {exc}") from exc


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a field of the configuration has."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in inner
    if origin in (Union, types.UnionType):
        return any(_is_of(value, part) for part in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_of(part, inner[0]) for part in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def _told(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, types.UnionType):
        return ", or ".join(_told(part) for part in inner)
    if origin is tuple:
        return "a list of names"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return words.get(hint, "nothing" if hint is type(None) else "a mapping of names to values")
