"""The flags that `eval` and `check` share: which env, which policy, and their settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from hocket.cli import adapters
from hocket.cli.flags import documented, parse_flags
from hocket.cli.values import Name, Names, parse_names
from hocket.errors import ConfigError
from hocket.records import run_file as configs


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is to be run."""

    NOT_CONFIG: ClassVar[frozenset[str]] = frozenset({"config"})
    """Flags of this verb alone: no part of a run's configuration."""

    env: Names
    """What to run in: metaworld:mt10 (a suite), metaworld:reach-v3 (one task), gym:ANY-ID, or your
    own as package.module:factory. Several, separated by commas, make one run."""
    policy: Name
    """What decides: reference (bundled), metaworld-expert, random, zero, or your own class or
    factory as package.module:attr."""
    seed: int = 0
    """First seed. A trial's start state and noise come from its task and seed alone, so the same
    seed gives the same trials on any machine and with any number of lanes."""
    env_python: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """Interpreter for the simulators, where they need another one (3.10 or later) than this:
    path/to/venv/bin/python. hocket need not be installed there."""
    policy_python: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """Interpreter for the policy, where it needs another one than this. hocket need not be
    installed there."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Start from this file: the run.yaml of any run, or its folder. Flags override it."""


_LAST = ("env_python", "policy_python", "config", "out", "json", "dry_run", "jobs")
"""Flags that help lists after the others."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Flags as they were given, and the plain configuration that they make with the file's."""

    flags: Any
    config: dict[str, Any]


def parse(flags: type[Subject], arguments: Sequence[str], *, verb: str) -> Parsed:
    """Read a command line, with the settings of the adapters that it or its file names."""
    file = adapters.scan(arguments, "--config")
    plain = configs.load_run(Path(file)) if file else {}
    names = {
        "env": parse_names(adapters.scan(arguments, "--env") or _joined(plain.get("env"))),
        "policy": (adapters.scan(arguments, "--policy") or _joined(plain.get("policy")),),
    }
    settings = {
        "env": adapters.settings_class("envs", names["env"]),
        "policy": adapters.policy_settings(names["policy"][0], arguments),
    }
    arguments = adapters.spell_out(arguments, settings["policy"])
    whole = _with_settings(flags, settings, names)
    parsed = parse_flags(
        whole,
        arguments,
        verb=verb,
        about=flags.__doc__,
        default=_defaults(whole, settings, plain),
    )
    return Parsed(parsed, plain | _to_plain(parsed, flags.NOT_CONFIG))


def refuse_bad_run_file(arguments: Sequence[str]) -> None:
    """Say what is wrong with the run file behind --config, before flags are laid over it."""
    file = adapters.scan(arguments, "--config")
    if file is None:
        return
    from hocket.runs.config import EvalConfig

    try:
        EvalConfig.from_plain({"env": "unnamed", "policy": "", **configs.load_run(Path(file))})
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _with_settings(
    flags: type[Subject],
    settings: Mapping[str, type[Any]],
    names: Mapping[str, Sequence[str]],
) -> type[Any]:
    """The dataclass of flags with one group of settings more for each named adapter."""
    fields = documented(flags, last=_LAST)
    for kind, group in settings.items():
        if dataclasses.fields(group):
            text = f"Settings of {', '.join(names[kind])}."
            argument = tyro.conf.arg(name=kind, help=text)
            fields.append((f"{kind}_config", Annotated[group, argument]))
    return dataclasses.make_dataclass("Flags", fields, kw_only=True, frozen=True)


def _defaults(whole: type[Any], settings: Mapping[str, type[Any]], plain: Mapping[str, Any]) -> Any:
    """What stands where no flag is given: the file's value, else the flag's own default."""
    values: dict[str, Any] = {}
    groups = {
        f"{kind}_config": adapters.default_settings(group, plain.get(f"{kind}_config") or {})
        for kind, group in settings.items()
    }
    for field in dataclasses.fields(whole):
        if field.name in groups:
            values[field.name] = groups[field.name]
        elif field.name in plain:
            value = plain[field.name]
            values[field.name] = tuple(value) if isinstance(value, list) else value
        elif field.default is dataclasses.MISSING:
            values[field.name] = tyro.MISSING
    if isinstance(values.get("env"), str):
        values["env"] = parse_names(values["env"])
    return whole(**values)


def _to_plain(parsed: Any, left_out: Collection[str]) -> dict[str, Any]:
    plain: dict[str, Any] = {"env_config": {}, "policy_config": {}}
    for field in dataclasses.fields(parsed):
        value = getattr(parsed, field.name)
        if field.name in ("env_config", "policy_config"):
            plain[field.name] = adapters.given_settings(value)
        elif field.name not in left_out:
            plain[field.name] = list(value) if isinstance(value, tuple) else value
    return plain


def _joined(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value or "")
