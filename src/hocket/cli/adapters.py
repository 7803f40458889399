"""Flags that come from the named adapters: `--env.*` and `--policy.*`.

The names stand on the same command line as the flags that they bring, so they are read first, from
the arguments or the file behind `--config`; then the parser is built.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro
import yaml

from hocket.cli import flags
from hocket.cli.values import parse_names
from hocket.core import plugins
from hocket.core.plugins import Kind
from hocket.errors import ConfigError, UnknownNameError


def scan(arguments: Sequence[str], flag: str) -> str | None:
    """What the arguments give for a flag, before there is a parser; the last one counts."""
    found = None
    for place, argument in enumerate(arguments):
        if argument == flag and place + 1 < len(arguments):
            found = arguments[place + 1]
        elif argument.startswith(flag + "="):
            found = argument.partition("=")[2]
    return found


def settings_class(kind: Kind, names: Sequence[str]) -> type[Any]:
    """One dataclass with every setting of the named adapters, by field name.

    Where adapters disagree on a default it becomes None, which leaves each its own.
    """
    merged: dict[str, _Setting] = {}
    for name in names:
        config_class = plugins.find(kind, name).config_class
        hints = get_type_hints(config_class, include_extras=True)
        for field in dataclasses.fields(config_class):
            if field.init:
                setting = _Setting.of(field, hints.get(field.name, Any), config_class)
                known = merged.get(field.name)
                merged[field.name] = known.joined(setting) if known else setting
    fields = [(name, setting.flag, setting.field()) for name, setting in merged.items()]
    return dataclasses.make_dataclass("Settings", fields, kw_only=True, frozen=True)


def policy_settings(name: str | None, arguments: Sequence[str]) -> type[Any]:
    """The settings of the named policy. With --policy-python its module may exist only there: then
    whatever is given as --policy.NAME is taken, and checked when the policy is built."""
    try:
        return settings_class("policies", [name] if name else [])
    except ImportError:
        if scan(arguments, "--policy-python") is None:
            raise
    except UnknownNameError:
        if scan(arguments, "--policy-python") is None or ":" not in (name or ""):
            raise
    given = [argument.partition("=")[0] for argument in arguments]
    names = [one.removeprefix("--policy.") for one in given if one.startswith("--policy.")]
    fields: list[Any] = [
        (one.replace("-", "_"), Annotated[Any, _YAML], _Setting(Any, None, None).field())
        for one in dict.fromkeys(names)
    ]
    return dataclasses.make_dataclass("Settings", fields, kw_only=True, frozen=True)


SHORT = {"--ready-timeout": "ready_timeout_s", "--flush-on-reconnect": "flush_on_reconnect"}
"""Settings of policies over the wire that need not be spelled --policy.NAME."""


def spell_out(arguments: Sequence[str], settings: type[Any]) -> list[str]:
    """The arguments with short flags as the settings that they are, where the policy has those."""
    known = {field.name for field in dataclasses.fields(settings)}
    spelled = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        name = SHORT.get(flag.replace("_", "-"))
        long = f"--policy.{name.replace('_', '-')}" if name in known and name else flag
        spelled.append(long + equals + value)
    return spelled


def default_settings(settings: type[Any], config: Mapping[str, Any]) -> Any:
    """An instance with `config` over the defaults; what is required and not there stays missing."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"Settings must be a mapping of names to values, not {config!r}.")
    known = [field.name for field in dataclasses.fields(settings)]
    for key in config:
        if key not in known:
            raise ConfigError(
                f"There is no setting {key!r} for what is named.{plugins.did_you_mean(key, known)} "
                f"Known: {', '.join(known) or 'none'}."
            )
    values = {}
    for field in dataclasses.fields(settings):
        value = config.get(field.name, field.metadata["default"])
        missing = value is dataclasses.MISSING
        values[field.name] = (
            tyro.MISSING if missing else tuple(value) if isinstance(value, list) else value
        )
    return settings(**values)


def given_settings(settings: Any) -> dict[str, Any]:
    """What differs from the defaults, plain: these are what a run has to remember."""
    given = {}
    for field in dataclasses.fields(settings):
        value, default = getattr(settings, field.name), field.metadata["default"]
        if default is dataclasses.MISSING or value != default:
            given[field.name] = _plain(value)
    return given


@dataclasses.dataclass(frozen=True, slots=True)
class _Setting:
    """One flag-to-be: its type, its default (MISSING where required) and its help."""

    annotation: Any
    default: Any
    help: str | None

    @classmethod
    def of(cls, field: dataclasses.Field[Any], hint: Any, owner: type[Any]) -> _Setting:
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        # A type that no flag can spell is still reachable, as a YAML value.
        annotation = hint if _is_spelled(hint) else Annotated[Any, _YAML]
        if hint == tuple[str, ...]:
            annotation = Annotated[hint, _WORDS]
        return cls(annotation, default, flags.field_docstrings(owner).get(field.name))

    @property
    def flag(self) -> Any:
        return flags.described(self.annotation, self.help, self.default)

    def joined(self, other: _Setting) -> _Setting:
        if self.default == other.default and self.annotation == other.annotation:
            return self
        hint = self.annotation
        if other.annotation != hint:
            hint = Union[hint, other.annotation]
        return _Setting(Union[hint, None], None, self.help)

    def field(self) -> Any:
        note = {"default": self.default}
        if self.default is dataclasses.MISSING:
            return dataclasses.field(metadata=note)
        return dataclasses.field(default_factory=lambda: self.default, metadata=note)


_WORDS = tyro.constructors.PrimitiveConstructorSpec(
    nargs="*",
    metavar="NAME[,NAME...]",
    instance_from_str=lambda texts: tuple(name for text in texts for name in parse_names(text)),
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=lambda value: [",".join(value)],
)
_YAML = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="YAML",
    instance_from_str=lambda texts: yaml.safe_load(texts[0]),
    is_instance=lambda value: True,
    str_from_instance=lambda value: [repr(value)],
)


def _is_spelled(hint: Any) -> bool:
    """Whether values of this type can be written as words on a command line."""
    if hint in (bool, int, float, str, Path):
        return True
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return all(part is type(None) or _is_spelled(part) for part in inner)
    if origin in (tuple, list):
        return bool(inner) and all(part is ... or _is_spelled(part) for part in inner)
    return origin is Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum))


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Path):
        return str(value)
    return [_plain(part) for part in value] if isinstance(value, (tuple, list)) else value
