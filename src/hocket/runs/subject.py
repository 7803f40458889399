"""What is run in what: the one value that every verb begins with."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hocket.core import plugins
from hocket.core.contracts.runtime import Factor
from hocket.errors import ConfigError
from hocket.system import json_file
from hocket.workers.variables import refuse_secret_settings, refuse_secrets

SubjectT = TypeVar("SubjectT", bound="Subject")
_SILENT = (
    "runtime",
    "runtime_config",
    "start_timeout_s",
    "delay",
    "method",
    "first_chunk",
    "rtc_config",
    "protocol",
)
"""Fields that no run file mentions unless they were set: they say where and how long, not what, or
what most runs leave alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Envs and a policy by name, with their settings, interpreters, runtime and devices.

    `hocket.runs.assembly.Assembly` turns it into suites, workers and a policy. The configurations
    of evaluation and training are subjects with more fields, so that nobody has to forge one to
    use that.
    """

    noun: ClassVar[str] = "A run"
    """What messages call whoever has such a configuration."""

    env: tuple[str, ...]
    """What to run in: metaworld:mt10 (a suite), metaworld:reach-v3 (one task), libero:spatial,
    gym:ANY-ID, mjx:push (batched), or your own as my_envs.py:Env or package.module:factory.
    simpler:widowx, maniskill:ANY-ID, robosuite:Lift and isaaclab:MODULE:make need a venv of theirs.
    Several, separated by commas, make one run."""
    policy: str
    """What decides: reference (bundled), metaworld-expert, random, zero, lerobot:FOLDER or
    lerobot:USER/REPO[@REVISION] (a checkpoint), openpi://HOST:PORT or gr00t://HOST:PORT (a
    server), torch:FILE, a folder that hocket train wrote, or your own class or factory as
    my_policies.py:Policy or package.module:attr."""
    env_python: str | None = None
    """Interpreter for the simulators, where they need another one (3.10 or later) than this:
    path/to/venv/bin/python. hocket need not be installed there."""
    policy_python: str | None = None
    """Interpreter for the policy, where it needs another one than this. hocket need not be
    installed there."""
    policy_devices: tuple[str, ...] = ()
    """Put a copy of the policy on each of these (cuda:0,cuda:1); they infer at the same time."""
    runtime: str = "auto"
    """Where workers live. auto: in this process for one lane and for batched simulators, else in
    processes of this machine (local). Or docker:IMAGE, podman:IMAGE (a container for each lane),
    ssh:user@host[,host...], or your own as package.module:attr. `hocket doctor` says which work."""
    start_timeout_s: float = 300.0
    """Longest wait for a worker to start and connect, for an env to be built and reset, and for its
    recordings to be sealed."""
    env_config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the envs; each env takes those that it has."""
    policy_config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the policy."""
    runtime_config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the runtime."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is not ClassVar and not _is_of(getattr(self, name), hint):
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; it must be {_described(hint)}."
                )
        if not self.env:
            raise ConfigError("No env is named. Give one, as in --env metaworld:mt10.")
        if len(set(self.env)) < len(self.env):
            raise ConfigError(f"An env is named twice in {', '.join(self.env)}.")
        if self.start_timeout_s <= 0:
            raise ConfigError(f"start_timeout_s is {self.start_timeout_s}; it must be above 0.")
        for name in ("env", "options"):
            refuse_secrets(self.runtime_config.get(name, ()))
        refuse_secret_settings([*self.env, self.policy, self.env_config, self.policy_config])
        if self.runtime == "auto" and self.runtime_config:
            raise ConfigError("Settings of a runtime need its name: give --runtime too.")

    @property
    def disturbed(self) -> tuple[Factor, ...]:
        """What of the env is disturbed."""
        return ()

    def elsewhere(self: SubjectT, runtime: str | None, settings: Mapping[str, Any]) -> SubjectT:
        """The same in another runtime, where one is named."""
        if runtime is None:
            return self
        return dataclasses.replace(self, runtime=runtime, runtime_config=settings)

    def to_plain(self) -> dict[str, Any]:
        """The fields as values that YAML and JSON know."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for f in dataclasses.fields(self):
            # Where nothing was chosen there is nothing to compare.
            if f.name in _SILENT and plain[f.name] == (f.default if f.default != MISSING else {}):
                del plain[f.name]
        return dict(json_file.plain(plain))

    @classmethod
    def from_plain(cls: type[SubjectT], plain: Mapping[str, Any]) -> SubjectT:
        """A configuration out of plain values; unknown keys are errors."""
        known = [f.name for f in dataclasses.fields(cls)]
        for key in plain:
            if key not in known:
                raise ConfigError(
                    f"{cls.noun} has no setting {key!r}.{plugins.did_you_mean(key, known)}"
                )
        values = dict(plain)
        hints = get_type_hints(cls)
        for key in [key for key in values if hints[key] == tuple[str, ...]]:
            value = values[key]
            if isinstance(value, str):
                values[key] = tuple(part for part in value.split(",") if part)
            elif isinstance(value, (list, tuple)):
                values[key] = tuple(value)
        try:
            return cls(**values)
        except TypeError as exc:
            raise ConfigError(f"The configuration is wrong: {exc}") from exc


def _is_of(value: Any, hint: Any) -> bool:
    """True if a value is of the type that a field of the configuration has."""
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


def _described(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, types.UnionType):
        return ", or ".join(_described(part) for part in inner)
    if origin is tuple:
        return "a list of names"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return words.get(hint, "nothing" if hint is type(None) else "a mapping of names to values")
