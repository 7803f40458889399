"""The settings of the named adapters as groups of flags: `--env.*`, `--policy.*`, `--runtime.*`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal, Union

import tyro

from hocket.cli.flags.flag import Flag, flags_of, make_class, plain_value, spelling_of
from hocket.cli.flags.values import Yaml
from hocket.core import plugins
from hocket.core.plugins import Kind
from hocket.errors import ConfigError, UnknownNameError

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
