"""From a command line to flags and a configuration.

Every field of a dataclass is a flag, and the docstring below the field is its help. A verb's own
flags are the fields of its dataclass; a verb that makes a run takes the others from the fields of
the run's configuration, where type, default and help are declared once. The settings of the named
adapters (`--env.*`, `--policy.*`, `--runtime.*`) are fields of the adapters' configurations. As the
names stand on the same command line as the settings that they bring, they are read first, from the
arguments or the file behind `--config`; then the parser is built.

`--help` shows a beginner ten flags in groups, and the flags of what is named beside it; `--help-
all` shows every flag.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from hocket.cli.flags.flag import (
    Flag,
    Settings,
    env_settings,
    evaluation_settings,
    flags_of,
    make_class,
    plain_value,
    policy_settings,
    runtime_settings,
    scan,
    spell_out,
)
from hocket.cli.flags.values import FIELDS, SITE_FIELDS, parse_names
from hocket.errors import ConfigError, UsageError
from hocket.records.run_file import load_run

Fields = list[Any]
"""Fields of a dataclass to be made, as `make_dataclass` takes them: name first, type second."""

_GROUP = 2
"""Parts of a field that is a group of flags: it has no default."""
_FIRST: Mapping[str, Mapping[str, Sequence[str]]] = {
    "eval": {
        "": ("env", "policy"),
        "trial": ("episodes", "seed", "lanes", "replan"),
        "output": ("out", "video", "watch", "dry_run"),
    },
    "train": {
        "": ("env", "policy"),
        "learning": ("algo", "mode", "steps", "reward", "lanes"),
        "output": ("out", "watch", "resume"),
    },
}
"""What each verb shows first, by group; those without one stand beside --help."""
_OF_MACHINES = ("sites", "site")
"""Flags that say something of the machines of --machines."""
OF_ALGORITHMS = {
    "ppo": ("gamma", "lam", "clip_value", "value_weight", "critic_lr", "value_only"),
    "rlpd": ("gamma", "value_only", "replays", "critics"),
    "dagger": ("expert", "rounds", "takeover", "failures"),
    "grpo": ("group", "pin_version", "kl_weight"),
}
"""Flags that only one training algorithm reads."""
_WITH_ALGORITHM = {**OF_ALGORITHMS, "bc": ("data", "data_episodes")}
"""Flags that are shown once the algorithm is named."""


def is_help(arguments: Sequence[str]) -> bool:
    """True where help is asked for."""
    return any(word in ("-h", "--help", "--help-all") for word in arguments)


def is_short(arguments: Sequence[str]) -> bool:
    """True where help is asked for, and not all of it."""
    return is_help(arguments) and "--help-all" not in arguments


def told(flag: Flag, verb: str, arguments: Sequence[str]) -> Flag:
    """The flag with as much of its help as is to be shown."""
    if flag.help is None or not (is_short(arguments) and verb in _FIRST):
        return flag
    full = flag.help
    return dataclasses.replace(flag, help=lambda: _sentence(full() or ""))


def about(owner: type[Any], verb: str, arguments: Sequence[str]) -> str:
    """The text above the flags."""
    text = " ".join((owner.__doc__ or "").split())
    if is_short(arguments) and verb in _FIRST:
        text = (
            f"{_sentence(text)} Each named env, policy, --runtime or --machines adds flags; "
            f"--help-all shows all."
        )
    # Lines that do not begin with a letter are left as they are; others would be joined again.
    width = shutil.get_terminal_size().columns - 1
    return textwrap.fill(text, width, initial_indent="  ", subsequent_indent="  ")


def shown(fields: Fields, verb: str, arguments: Sequence[str]) -> Fields:
    """The fields to build the parser of: all of them, but those that short help leaves out."""
    if not is_short(arguments):
        return fields
    hidden = set() if scan(arguments, "--machines") is not None else set(_OF_MACHINES)
    fields = [field for field in fields if field[0] not in hidden]
    if verb not in _FIRST:
        return fields
    known = {field[0]: field for field in fields}
    groups = dict(_FIRST[verb])
    algorithm = scan(arguments, "--algo")
    if verb == "train" and algorithm in _WITH_ALGORITHM:
        groups[algorithm] = _WITH_ALGORITHM[algorithm]
    if scan(arguments, "--machines") is not None:
        groups["machines"] = ("machines", "sites")
    settings = [field for field in fields if len(field) == _GROUP]
    plain = [known[one] for one in groups.pop("")]
    boxes = [_box(name, [known[one] for one in of]) for name, of in groups.items()]
    return plain + boxes + settings


def _box(name: str, fields: Fields) -> tuple[str, Any]:
    """A box of flags that keep their names."""
    return name, tyro.conf.configure(tyro.conf.OmitArgPrefixes)(make_class(fields))


def _sentence(text: str) -> str:
    """The first sentence of a text."""
    return re.split(r"(?<=\.) ", text, maxsplit=1)[0]


T = TypeVar("T")

_GROUPS = ("env_config", "policy_config", "runtime_config", "eval_env_config", "rtc_config")
"""Fields of a configuration that are groups of flags: what adapters are set to."""
_OF_VERBS = ("perturb",)
"""Fields of a configuration whose flag means more than one run: the verb has one of its own."""
_REPEATED = "--reader"
"""A flag that may be given more than once, for one more each time."""


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


def parse(owner: type[T], arguments: Sequence[str], *, verb: str) -> T:
    """The flags of a verb that needs nothing of any adapter."""
    return _parse(owner, {}, [], {}, arguments, verb=verb).flags


def parse_alone(owner: type[T], arguments: Sequence[str], *, verb: str, with_: str, why: str) -> T:
    """The flags of a verb `with_` one that takes few others beside it; `why` says where the rest
    is."""
    known = {f"--{name.replace('_', '-')}" for name in flags_of(owner)}
    for word in arguments:
        flag = word.partition("=")[0].replace("_", "-")
        is_known = flag in known or flag.startswith(("--site.", "--help"))
        if flag.startswith("--") and not is_known:
            raise UsageError(f"{with_} takes no {flag}: {why}.")
    return parse(owner, arguments, verb=verb)


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
    if "protocol" in knobs:
        from hocket.runs.protocols import with_protocol

        file["protocol"] = scan(arguments, "--protocol") or file.get("protocol") or ""
        named = scan(arguments, "--env")
        file = with_protocol({**file, **({"env": parse_names(named)} if named else {})})
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

        settings.append(Settings("rtc", ["--method rtc"], flags_of(RtcConfig)))
    return _parse(owner, knobs, settings, file, arguments, verb=verb)


def knobs_of(
    config: type[Any], *, only: Sequence[str] = (), without: Container[str] = ()
) -> dict[str, Flag]:
    """The fields of a configuration as flags: those in `only`, or all but those in `without`. After
    env and policy come the fields of the class itself, then those of its parents."""
    found = {
        name: flag
        for name, flag in _spelled(config, FIELDS).items()
        if name not in (*_GROUPS, *_OF_VERBS) and name not in without
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


def _parse(
    owner: type[T],
    knobs: Mapping[str, Flag],
    settings: Sequence[Settings],
    file: Mapping[str, Any],
    arguments: Sequence[str],
    *,
    verb: str,
) -> Parsed[T]:
    own = flags_of(owner)
    for name in own.keys() & knobs.keys():
        own[name] = dataclasses.replace(own[name], default=knobs[name].default)
    groups = {
        name: kind
        for name, flag in own.items()
        if isinstance(kind := flag.annotation, type) and dataclasses.is_dataclass(kind)
    }
    flat = {name: flag for name, flag in {**knobs, **own}.items() if name not in groups}
    topic = verb if knobs else ""  # what else a verb takes is few enough to be shown at once
    fields: list[Any] = [
        told(flag, topic, arguments).field(name, file) for name, flag in flat.items()
    ]
    fields += [_group(name, kind, own[name].help) for name, kind in groups.items()]
    for group in settings:
        fields += group.fields(file.get(group.field) or {})
    parsed = tyro.cli(
        make_class(shown(fields, topic, arguments)),
        args=["--help"] if is_help(arguments) else _gathered(arguments),
        prog=f"hocket {verb}",
        description=about(owner, topic, arguments),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    config = {**file, **{name: plain_value(getattr(parsed, name)) for name in knobs}}
    for group in settings:
        config[group.field] = group.given(getattr(parsed, group.field, None))
    values = {name: getattr(parsed, name) for name in own}
    for name, kind in groups.items():
        values[name] = kind(**dataclasses.asdict(values[name]))
    return Parsed(owner(**values), config)


def _gathered(arguments: Sequence[str]) -> list[str]:
    """The arguments with what a repeated flag was given each time as one list."""
    rest, values, words = [], [], iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == _REPEATED:
            values.append(value if equals else next(words, ""))
        else:
            rest.append(word)
    return [*rest, _REPEATED, ",".join(values)] if values else rest


def _group(name: str, kind: type[Any], said: Callable[[], str | None] | None) -> tuple[str, Any]:
    """The fields of a dataclass as a group of flags, --NAME.FIELD."""
    fields = [one.field(field, {}) for field, one in _spelled(kind, SITE_FIELDS).items()]
    text = tyro.conf.arg(name=name, help=said() if said else None)
    return name, Annotated[make_class(fields), text]


def _spelled(owner: type[Any], notes: Mapping[str, Any]) -> dict[str, Flag]:
    """The fields of a dataclass as flags, spelled as the notes on some of them say."""
    found = flags_of(owner)
    for name in found.keys() & notes.keys():
        kind: Any = found[name].annotation
        found[name] = dataclasses.replace(found[name], annotation=Annotated[kind, notes[name]])
    return found


def _joined(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value or "")
