"""A field of a dataclass as a flag: its type as words can spell it, its default, and the docstring
below it as its help. The settings of the named adapters are groups of them: `--env.*`,
`--policy.*`, `--runtime.*`."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
import tyro
from tyro.constructors import PrimitiveConstructorSpec

from hocket.cli.flags.values import Pairs, Words, Yaml
from hocket.core import plugins
from hocket.core.plugins import Kind
from hocket.errors import ConfigError, UnknownNameError


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag to be: its type, its default (MISSING where it is required) and its help."""

    annotation: object
    default: object
    help: Callable[[], str | None] | None
    """Its text is made where it is shown: to find it in the source takes as long as all else."""

    def field(self, name: str, file: Mapping[str, Any]) -> tuple[str, Any, Any]:
        """The flag for `make_dataclass`; what a file says stands where the flag is not given."""
        value = file.get(name, self.default)
        value = tuple(value) if isinstance(value, list) else value
        says_nothing = value is None or value is False or value == ()
        text: Any = self.help  # tyro declares a string, and calls what is none
        hint = tyro.conf.arg(help=text, help_behavior_hint="" if says_nothing else None)
        factory: Any = MISSING if value is MISSING else lambda: value
        kind = outline(self.annotation)
        return name, Annotated[kind, hint], dataclasses.field(default_factory=factory)

    def joined(self, other: Flag) -> Flag:
        """One flag for two adapters. Where they differ its default is None: each keeps its own."""
        if self.default == other.default and self.annotation == other.annotation:
            return self
        annotation = self.annotation
        if other.annotation != annotation:
            annotation = Union[annotation, other.annotation]
        return Flag(Union[annotation, None], None, self.help)


def make_class(fields: Sequence[Any]) -> type[Any]:
    return dataclasses.make_dataclass("Flags", fields, kw_only=True, frozen=True)


def flags_of(owner: type[Any]) -> dict[str, Flag]:
    """The fields of a dataclass as flags."""
    hints = get_type_hints(owner, include_extras=True)
    helps = functools.cache(functools.partial(_helps_of, owner))
    found = {}
    for field in dataclasses.fields(owner):
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
        if field.init:
            text = functools.partial(_help_of, helps, field.name)
            found[field.name] = Flag(hints.get(field.name, Any), default, text)
    return found


def _help_of(helps: Callable[[], dict[str, str]], field: str) -> str | None:
    return helps().get(field)


def _helps_of(owner: type[Any]) -> dict[str, str]:
    """The docstrings below the fields of a class and its parents."""
    found: dict[str, str] = {}
    for parent in reversed(owner.__mro__[:-1]):
        try:
            described = docstring_parser.parse_from_object(parent).params
        except (TypeError, SyntaxError):  # No file holds its source.
            continue
        found |= {one.arg_name: " ".join((one.description or "").split()) for one in described}
    return found


def spelling_of(hint: Any) -> Any:
    """The type of a setting as a flag can give it: what words cannot spell is read as YAML."""
    if hint == tuple[str, ...]:
        return Words
    if hint == Mapping[str, str]:
        return Pairs
    return hint if _is_spelled(hint) else Yaml


def outline(hint: Any) -> Any:
    """A type as tyro can check defaults against it by itself: `X | None` in its older spelling, and
    what is read by a rule of ours as anything. For anything else tyro imports typeguard,
    which costs more than all that parsing needs."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        kind = Union[tuple(map(outline, get_args(kind)))]
    elif isinstance(origin, type) and any(isinstance(n, PrimitiveConstructorSpec) for n in notes):
        kind = object
    return Annotated[(kind, *notes)] if notes else kind


def _is_spelled(hint: Any) -> bool:
    """True if values of this type can be written as words on a command line."""
    if hint in (bool, int, float, str, Path):
        return True
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return all(part is type(None) or _is_spelled(part) for part in inner)
    if origin in (tuple, list):
        return bool(inner) and all(part is ... or _is_spelled(part) for part in inner)
    return origin is Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum))


def plain_value(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Path):
        return str(value)
    return [plain_value(part) for part in value] if isinstance(value, (tuple, list)) else value


_SHORT = {"--ready-timeout": "ready_timeout_s", "--flush-on-reconnect": "flush_on_reconnect"}
"""Settings of policies over the wire that need not be spelled --policy.NAME."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of all adapters that are named as env, policy or runtime, by field name."""

    kind: Literal["env", "policy", "runtime", "eval.env", "rtc"]
    names: Sequence[str]
    flags: Mapping[str, Flag]

    @property
    def field(self) -> str:
        """The field of a configuration that has them."""
        return f"{self.kind.replace('.', '_')}_config"

    def fields(self, file: Mapping[str, Any]) -> list[Any]:
        """The group of flags for `make_dataclass`, unless there are no settings."""
        if not isinstance(file, Mapping):
            raise ConfigError(f"Settings must be a mapping of names to values, not {file!r}.")
        for key in file:
            if key not in self.flags:
                raise ConfigError(
                    f"There is no setting {key!r} for what is named."
                    f"{plugins.did_you_mean(key, list(self.flags))} "
                    f"Known: {', '.join(self.flags) or 'none'}."
                )
        if not self.flags:
            return []
        group = make_class([flag.field(name, file) for name, flag in self.flags.items()])
        text = tyro.conf.arg(name=self.kind, help=f"Settings of {', '.join(self.names)}.")
        return [(self.field, Annotated[group, text])]

    def given(self, group: Any) -> dict[str, Any]:
        """What differs from the defaults, plain: these are what a run has to remember."""
        values = {name: getattr(group, name) for name in self.flags}
        return {
            name: plain_value(value)
            for name, value in values.items()
            if self.flags[name].default is MISSING or value != self.flags[name].default
        }


def env_settings(names: Sequence[str]) -> Settings:
    """The settings of the named envs; those of one name are one flag."""
    return Settings("env", names, adapter_flags("envs", names))


def evaluation_settings(names: Sequence[str]) -> Settings:
    """The settings of the named envs in evaluations. By default each is as in training."""
    flags = {
        name: Flag(Union[flag.annotation, None], None, flag.help)
        for name, flag in adapter_flags("envs", names).items()
    }
    return Settings("eval.env", names, flags)


def policy_settings(name: str | None, arguments: Sequence[str]) -> Settings:
    """The settings of the named policy. With --policy-python its module may exist only there: then
    whatever is given as --policy.NAME is taken, and checked when the policy is built."""
    names = [name] if name else []
    try:
        return Settings("policy", names, adapter_flags("policies", names))
    except ImportError:
        if scan(arguments, "--policy-python") is None:
            raise
    except UnknownNameError:
        if scan(arguments, "--policy-python") is None or ":" not in (name or ""):
            raise
    given = [argument.partition("=")[0] for argument in arguments]
    settings = [one.removeprefix("--policy.") for one in given if one.startswith("--policy.")]
    anything = Flag(Yaml, None, None)
    return Settings("policy", names, {one.replace("-", "_"): anything for one in settings})


def runtime_settings(name: str | None) -> Settings:
    """The settings of the named runtime; whatever `auto` chooses has none."""
    names = [name] if name and name != "auto" else []
    return Settings("runtime", names, adapter_flags("runtimes", names))


def spell_out(arguments: Sequence[str], settings: Settings) -> list[str]:
    """The arguments with short flags as the settings that they are, where the policy has those."""
    spelled = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        name = _SHORT.get(flag.replace("_", "-"), "")
        if name in settings.flags:
            flag = f"--policy.{name.replace('_', '-')}"
        spelled.append(flag + equals + value)
    return spelled


def adapter_flags(kind: Kind, names: Sequence[str]) -> dict[str, Flag]:
    merged: dict[str, Flag] = {}
    for name in names:
        for field, flag in flags_of(plugins.find(kind, name).config_class).items():
            spelled = dataclasses.replace(flag, annotation=spelling_of(flag.annotation))
            merged[field] = merged[field].joined(spelled) if field in merged else spelled
    return merged


def scan(arguments: Sequence[str], flag: str) -> str | None:
    """What the arguments give for a flag, before there is a parser; the last one counts."""
    found = None
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            found = arguments[index + 1]
        elif argument.startswith(flag + "="):
            found = argument.partition("=")[2]
    return found
