"""From a command line to flags and a configuration.

Every field of a dataclass is a flag, and the docstring below the field is its help. A verb's own
flags are the fields of its dataclass; a verb that makes a run takes the others from the fields of
the run's configuration, where type, default and help are declared once. The settings of the named
adapters (`--env.*`, `--policy.*`, `--runtime.*`) are fields of the adapters' configurations. As the
names stand on the same command line as the settings that they bring, they are read first, from the
arguments or the file behind `--config`; then the parser is built.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import shutil
import textwrap
import types
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import docstring_parser
import tyro
from tyro.constructors import PrimitiveConstructorSpec

from hocket.cli.flags.values import FIELDS, SITE_FIELDS, Pairs, Words, Yaml, parse_names
from hocket.core import plugins
from hocket.core.plugins import Kind
from hocket.errors import ConfigError, UnknownNameError
from hocket.records.run_file import load_run

T = TypeVar("T")

_GROUPS = ("env_config", "policy_config", "runtime_config", "eval_env_config", "rtc_config")
"""Fields of a configuration that are groups of flags: what adapters are set to."""
_SHORT = {"--ready-timeout": "ready_timeout_s", "--flush-on-reconnect": "flush_on_reconnect"}
"""Settings of policies over the wire that need not be spelled --policy.NAME."""


@dataclass(frozen=True, kw_only=True)
class FileFlags:
    """What a verb that makes a run takes besides the fields of the run's configuration."""

    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Start from this file: the run.yaml of any run, or its folder. Flags override it."""


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """A verb's own flags, and the plain configuration that the others make with the file's."""

    flags: T
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag to be: its type, its default (MISSING where it is required) and its help."""

    annotation: Any
    default: Any
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
        kind = _outline(self.annotation)
        return name, Annotated[kind, hint], dataclasses.field(default_factory=factory)

    def joined(self, other: Flag) -> Flag:
        """One flag for two adapters. Where they differ its default is None: each keeps its own."""
        if self.default == other.default and self.annotation == other.annotation:
            return self
        annotation = self.annotation
        if other.annotation != annotation:
            annotation = Union[annotation, other.annotation]
        return Flag(Union[annotation, None], None, self.help)


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
        group = _make_class([flag.field(name, file) for name, flag in self.flags.items()])
        text = tyro.conf.arg(name=self.kind, help=f"Settings of {', '.join(self.names)}.")
        return [(self.field, Annotated[group, text])]

    def given(self, group: Any) -> dict[str, Any]:
        """What differs from the defaults, plain: these are what a run has to remember."""
        values = {name: getattr(group, name) for name in self.flags}
        return {
            name: _plain(value)
            for name, value in values.items()
            if self.flags[name].default is MISSING or value != self.flags[name].default
        }


def parse(owner: type[T], arguments: Sequence[str], *, verb: str) -> T:
    """The flags of a verb that needs nothing of any adapter."""
    return _parse(owner, {}, [], {}, arguments, verb=verb).flags


def parse_with_policy(owner: type[T], arguments: Sequence[str], *, verb: str) -> Parsed[T]:
    """The flags of a verb, and `policy_config`: the settings of the policy that they name."""
    settings = policy_settings(scan(arguments, "--policy"), arguments)
    arguments = spell_out(arguments, settings)
    return _parse(owner, {}, [settings], {}, arguments, verb=verb)


def parse_with_runtime(owner: type[T], arguments: Sequence[str], *, verb: str) -> Parsed[T]:
    """The flags of a verb, and `runtime_config`: the settings of the runtime that they name."""
    settings = runtime_settings(scan(arguments, "--runtime"))
    return _parse(owner, {}, [settings], {}, arguments, verb=verb)


def parse_run(
    owner: type[T],
    knobs: Mapping[str, Flag],
    arguments: Sequence[str],
    *,
    verb: str,
    evaluates_apart: bool = False,
) -> Parsed[T]:
    """The flags of a verb that makes a run, with the settings of the adapters that the command
    line or its file names. A flag of the verb that has the name of a knob replaces its type and
    help, not its default. A verb that `evaluates_apart` has the envs' settings once more, for its
    evaluations."""
    path = scan(arguments, "--config")
    file = load_run(Path(path)) if path else {}
    if isinstance(file.get("env"), str):
        file["env"] = parse_names(file["env"])
    env = parse_names(scan(arguments, "--env") or _joined(file.get("env")))
    policy = scan(arguments, "--policy") or _joined(file.get("policy"))
    runtime = scan(arguments, "--runtime") or _joined(file.get("runtime"))
    settings = [env_settings(env), policy_settings(policy, arguments), runtime_settings(runtime)]
    if evaluates_apart:
        settings.append(evaluation_settings(env))
    arguments = spell_out(arguments, settings[1])
    if "method" in knobs and (scan(arguments, "--method") or file.get("method")) == "rtc":
        from hocket.adapters.policies.rtc import RtcConfig

        settings.append(Settings("rtc", ["--method rtc"], _flags_of(RtcConfig)))
    return _parse(owner, knobs, settings, file, arguments, verb=verb)


def knobs_of(
    config: type[Any], *, only: Sequence[str] = (), without: Container[str] = ()
) -> dict[str, Flag]:
    """The fields of a configuration as flags: those in `only`, or all but those in `without`. After
    env and policy come the fields of the class itself, then those of its parents."""
    found = {
        name: dataclasses.replace(flag, annotation=Annotated[flag.annotation, FIELDS[name]])
        if name in FIELDS
        else flag
        for name, flag in _flags_of(config).items()
        if name not in _GROUPS and name not in without
    }
    declared = [inspect.get_annotations(owner) for owner in config.__mro__]

    def rank(name: str) -> tuple[bool, int]:
        return name not in ("env", "policy"), [name in names for names in declared].index(True)

    return {name: found[name] for name in only or sorted(found, key=rank)}


def refuse_bad_run_file(arguments: Sequence[str]) -> None:
    """Say what is wrong with the run file behind --config, before flags are laid over it."""
    file = scan(arguments, "--config")
    if file is None:
        return
    from hocket.runs.config import EvalConfig

    try:
        EvalConfig.from_plain({"env": "unnamed", "policy": "", **load_run(Path(file))})
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def scan(arguments: Sequence[str], flag: str) -> str | None:
    """What the arguments give for a flag, before there is a parser; the last one counts."""
    found = None
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            found = arguments[index + 1]
        elif argument.startswith(flag + "="):
            found = argument.partition("=")[2]
    return found


def env_settings(names: Sequence[str]) -> Settings:
    """The settings of the named envs; those of one name are one flag."""
    return Settings("env", names, _adapter_flags("envs", names))


def evaluation_settings(names: Sequence[str]) -> Settings:
    """The settings of the named envs in evaluations. None of them is what it is elsewhere."""
    flags = {
        name: Flag(Union[flag.annotation, None], None, flag.help)
        for name, flag in _adapter_flags("envs", names).items()
    }
    return Settings("eval.env", names, flags)


def policy_settings(name: str | None, arguments: Sequence[str]) -> Settings:
    """The settings of the named policy. With --policy-python its module may exist only there: then
    whatever is given as --policy.NAME is taken, and checked when the policy is built."""
    names = [name] if name else []
    try:
        return Settings("policy", names, _adapter_flags("policies", names))
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
    return Settings("runtime", names, _adapter_flags("runtimes", names))


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


def _parse(
    owner: type[T],
    knobs: Mapping[str, Flag],
    settings: Sequence[Settings],
    file: Mapping[str, Any],
    arguments: Sequence[str],
    *,
    verb: str,
) -> Parsed[T]:
    own = _flags_of(owner)
    for name in own.keys() & knobs.keys():
        own[name] = dataclasses.replace(own[name], default=knobs[name].default)
    groups = {name: flag for name, flag in own.items() if dataclasses.is_dataclass(flag.annotation)}
    flat = {name: flag for name, flag in {**knobs, **own}.items() if name not in groups}
    fields: list[Any] = [flag.field(name, file) for name, flag in flat.items()]
    fields += [_group(name, flag) for name, flag in groups.items()]
    for group in settings:
        fields += group.fields(file.get(group.field) or {})
    # Lines that do not begin with a letter are left as they are; others would be joined again.
    width = shutil.get_terminal_size().columns - 1
    about = textwrap.fill(
        " ".join((owner.__doc__ or "").split()), width, initial_indent="  ", subsequent_indent="  "
    )
    parsed = tyro.cli(
        _make_class(fields),
        args=list(arguments),
        prog=f"hocket {verb}",
        description=about,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    config = {**file, **{name: _plain(getattr(parsed, name)) for name in knobs}}
    for group in settings:
        config[group.field] = group.given(getattr(parsed, group.field, None))
    values = {name: getattr(parsed, name) for name in own}
    for name, flag in groups.items():
        values[name] = flag.annotation(**dataclasses.asdict(values[name]))
    return Parsed(owner(**values), config)


def _group(name: str, flag: Flag) -> tuple[str, Any]:
    """The fields of a dataclass as a group of flags, --NAME.FIELD."""
    fields = []
    for field, one in _flags_of(flag.annotation).items():
        if field in SITE_FIELDS:
            note = SITE_FIELDS[field]
            is_rule = isinstance(note, PrimitiveConstructorSpec)
            kind: Any = one.annotation if is_rule else _spelled(one.annotation)
            one = dataclasses.replace(one, annotation=Annotated[kind, note])
        fields.append(one.field(field, {}))
    text = tyro.conf.arg(name=name, help=flag.help() if flag.help else None)
    return name, Annotated[_make_class(fields), text]


def _make_class(fields: Sequence[Any]) -> type[Any]:
    return dataclasses.make_dataclass("Flags", fields, kw_only=True, frozen=True)


def _flags_of(owner: type[Any]) -> dict[str, Flag]:
    """The fields of a dataclass as flags."""
    hints, helps = get_type_hints(owner, include_extras=True), _Helps(owner)
    found = {}
    for field in dataclasses.fields(owner):
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
        if field.init:
            text = functools.partial(helps.of, field.name)
            found[field.name] = Flag(hints.get(field.name, Any), default, text)
    return found


@dataclass
class _Helps:
    """The docstrings below the fields of a class, read when the first of them is wanted."""

    owner: type[Any]

    @functools.cached_property
    def _found(self) -> dict[str, str]:
        return _helps_of(self.owner)

    def of(self, field: str) -> str | None:
        return self._found.get(field)


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


def _adapter_flags(kind: Kind, names: Sequence[str]) -> dict[str, Flag]:
    merged: dict[str, Flag] = {}
    for name in names:
        for field, flag in _flags_of(plugins.find(kind, name).config_class).items():
            spelled = dataclasses.replace(flag, annotation=_spelled(flag.annotation))
            merged[field] = merged[field].joined(spelled) if field in merged else spelled
    return merged


def _spelled(hint: Any) -> Any:
    """The type of a setting as a flag can give it: what words cannot spell is read as YAML."""
    if hint == tuple[str, ...]:
        return Words
    if hint == Mapping[str, str]:
        return Pairs
    return hint if _is_spelled(hint) else Yaml


def _outline(hint: Any) -> Any:
    """A type as tyro can check defaults against it by itself: `X | None` in its older spelling, and
    what is read by a rule of ours as anything. For anything else tyro imports typeguard,
    which costs more than all that parsing needs."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        kind = Union[tuple(map(_outline, get_args(kind)))]
    elif isinstance(origin, type) and any(isinstance(n, PrimitiveConstructorSpec) for n in notes):
        kind = object
    return Annotated[(kind, *notes)] if notes else kind


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


def _joined(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value or "")


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Path):
        return str(value)
    return [_plain(part) for part in value] if isinstance(value, (tuple, list)) else value
