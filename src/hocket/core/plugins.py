"""Finds adapters by name: `metaworld:mt10`, `openpi://host:8000`, `package.module:attr`,
`folder/file.py:attr`.

A name is that of an adapter, with an argument for it after the colon. Built-in adapters stand in
one table, which the package names (`hocket.BUILTIN`); others come from entry points of the groups
`hocket.envs`, `hocket.policies`, `hocket.runtimes`, `hocket.recorders` and `hocket.readers`; any
other `module:attr` or `file.py:attr` is imported (`core/modules.py`). Nothing is imported that was
not asked for.

An adapter is a callable `(argument, config)` with an attribute `Config`, a dataclass whose fields
become flags. A plain callable works too: its keyword parameters become the configuration. Readers
alone have no settings: one is a callable `(argument, run)`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import hocket
from hocket import rooms
from hocket.core import modules
from hocket.errors import ConfigError, MissingExtraError, UnknownNameError
from hocket.system.text import did_you_mean as did_you_mean
from hocket.system.venvs.table import VENVS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

Kind = Literal["envs", "policies", "runtimes", "recorders", "readers"]


@dataclass(frozen=True, slots=True)
class Builtin:
    """Where a built-in adapter lives, and what it needs beyond the core."""

    target: str
    extra: str | None = None
    modules: tuple[str, ...] = ()
    """Modules that can be imported once the extra is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSettings:
    """The configuration of an adapter that has nothing to set."""


_BATCHES = ("batch", "obs", "observation", "observations")
"""What functions call the observations that they answer."""
_SINGULAR = {
    "envs": "env",
    "policies": "policy",
    "runtimes": "runtime",
    "recorders": "recorder",
    "readers": "reader",
}


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter found by name, with the argument that stood after its name."""

    name: str
    argument: str
    build: Callable[..., Any]
    config_class: type[Any]
    takes_argument: bool
    """False for a plain callable, which is called with its configuration alone."""

    @property
    def settings(self) -> list[str]:
        """The names of what can be set."""
        return [field.name for field in dataclasses.fields(self.config_class)]


def builtin() -> Mapping[Kind, Mapping[str, Builtin]]:
    """The built-in adapters, by kind and name. They stand in a table because workers load hocket
    from a folder, which has no entry points."""
    table: Mapping[Kind, Mapping[str, Builtin]] = _import(hocket.BUILTIN)
    return table


def names(kind: Kind) -> list[str]:
    """Every built-in or installed adapter of this kind."""
    found = {point.name for point in _entry_points(kind)}
    return sorted(found | set(builtin()[kind]))


def find(kind: Kind, name: str) -> Adapter:
    """The adapter that a name means. Its module is imported, the library behind it is not."""
    found, argument, is_own = _look_up(kind, name)
    config_class = getattr(found, "Config", None)
    if isinstance(config_class, type) and dataclasses.is_dataclass(config_class):
        return Adapter(name, argument, found, config_class, takes_argument=True)
    if not is_own:
        raise ConfigError(f"{name!r} is an adapter without a Config dataclass.")
    return Adapter(name, argument, found, _config_of(found), takes_argument=False)


def load(kind: Kind, name: str) -> Callable[..., Any]:
    """What a name means as it stands in its module, for a kind that has no settings."""
    return _look_up(kind, name)[0]


def _look_up(kind: Kind, name: str) -> tuple[Callable[..., Any], str, bool]:
    """What a name means, the argument after the name, and whether it is the user's own."""
    head, argument = _split(name)
    target = None
    if head in builtin()[kind]:
        found = _import(builtin()[kind][head].target)
    elif head in _entry_points(kind).names:
        found = _entry_points(kind)[head].load()
    elif (target := modules.target_of(name)) is not None:
        found, argument = modules.attribute(target), ""
        if kind == "policies" and _takes_batch(found):
            refuse_answering(found)
    else:
        raise _unknown(kind, name, head)
    if not callable(found):
        raise UnknownNameError(f"{name!r} is a {type(found).__name__}, not a class or a function.")
    return found, argument, target is not None


def refuse_answering(found: Any) -> None:
    """Raise where a function is given for a policy, which says more of itself than it can."""
    if inspect.isroutine(found):
        raise ConfigError(
            f"{found.__name__!r} is a function. A policy is an object, which says what it reads "
            "and gives: a class with spec = hocket.PolicySpec(chunk_length=..., action_size=...), "
            "infer(batch) and close()."
        )


def _takes_batch(found: Any) -> bool:
    """True if a function would answer a batch itself, rather than make a policy."""
    parameters = (
        list(inspect.signature(found).parameters.values()) if inspect.isroutine(found) else []
    )
    first = parameters[0] if parameters else None
    return (
        first is not None
        and first.default is first.empty
        and (first.name in _BATCHES or "Batch" in str(first.annotation))
    )


def is_plain(kind: Kind, name: str) -> bool:
    """True if a name means what stands in a module or file of the user's. Nothing is imported."""
    head, _ = _split(name)
    return head not in builtin()[kind] and head not in _entry_points(kind).names


def _entry_points(kind: Kind) -> EntryPoints:
    return _installed(kind, tuple(sys.path))


@functools.cache
def _installed(kind: Kind, _: tuple[str, ...]) -> EntryPoints:
    """The entry points on a path; found once, since that reads of every installed package."""
    # Imported here: it takes a tenth of the start of a worker, which seldom asks.
    from importlib.metadata import entry_points

    return entry_points(group=f"hocket.{kind}")


def build(kind: Kind, name: str, config: Mapping[str, Any] | None = None) -> Any:
    """The object that a name and its configuration mean."""
    adapter = find(kind, name)
    require_extra(kind, name)
    settings = configure(adapter, config or {})
    try:
        if adapter.takes_argument:
            return adapter.build(adapter.argument, settings)
        return adapter.build(**{name: getattr(settings, name) for name in adapter.settings})
    except SystemExit as exc:
        raise ConfigError(
            f"{name!r} called sys.exit({exc.code!r}) when it was built: have it raise an error."
        ) from exc


def configure(adapter: Adapter, config: Mapping[str, Any]) -> Any:
    """The adapter's configuration object from plain values; unknown keys are errors."""
    _refuse_unknown(repr(adapter.name), config, adapter.settings)
    values = {
        key: tuple(value) if isinstance(value, list) else value for key, value in config.items()
    }
    _refuse_unlisted(adapter, values)
    try:
        return adapter.config_class(**values)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"The settings of {adapter.name!r} are wrong: {exc}") from exc


def _refuse_unlisted(adapter: Adapter, values: Mapping[str, Any]) -> None:
    """Raise for a value that is none of those that its setting names in a `Literal`."""
    try:
        hints = typing.get_type_hints(adapter.config_class)
    except (NameError, TypeError):  # Of a user's own, which need not say more.
        return
    for key, value in values.items():
        hint = hints.get(key)
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        kinds = typing.get_args(hint) if is_union else (hint,)
        listed = [kind for kind in kinds if typing.get_origin(kind) is Literal]
        known = [each for kind in listed for each in typing.get_args(kind)]
        if types.NoneType in kinds:
            listed, known = [*listed, types.NoneType], [*known, None]
        if listed and len(listed) == len(kinds) and value not in known:
            raise ConfigError(
                f"The setting {key!r} of {adapter.name!r} cannot be {value!r}."
                f"{did_you_mean(str(value), map(str, known))} Known: "
                f"{', '.join(map(repr, known))}."
            )


def share_settings(
    kind: Kind, names: Sequence[str], config: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The settings that each of these adapters has. One that none has, or a wrong value, raises."""
    adapters = [find(kind, name) for name in names]
    known = sorted({key for adapter in adapters for key in adapter.settings})
    _refuse_unknown(" and ".join(map(repr, names)), config, known)
    shares = {}
    for adapter in adapters:
        share = {key: value for key, value in config.items() if key in adapter.settings}
        configure(adapter, share)
        shares[adapter.name] = share
    return shares


def _refuse_unknown(who: str, config: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in config:
        if key not in known:
            raise ConfigError(
                f"{who} has no setting {key!r}.{did_you_mean(key, known)} Known: "
                f"{', '.join(known) or 'none'}."
            )


def require_extra(
    kind: Kind, name: str, *, missing: Callable[..., list[str]] | None = None, python: str = ""
) -> None:
    """Raise MissingExtraError, with the pip command, where libraries of a built-in adapter are
    missing here, or in the interpreter `python`: `missing` then says which of some modules that one
    lacks."""
    head, _ = _split(name)
    own = builtin()[kind].get(head)
    if own is None or own.extra is None or not own.modules:
        return
    if missing is None:
        lacks = [module for module in own.modules if importlib.util.find_spec(module) is None]
    else:
        lacks = missing(*own.modules)
    if not lacks:
        return
    other = {"envs": "--env-python", "policies": "--policy-python"}.get(kind)
    lacking = (
        f"{_SINGULAR[kind].capitalize()} {head!r} needs the package {lacks[0]!r}, which is not "
        f"installed{f' in {python}' if python else ''}."
    )
    if own.extra in VENVS:
        raise MissingExtraError(f"{lacking[:-1]}: {install_advice(own.extra)}.")
    raise MissingExtraError(
        f"{lacking} Run: {python or sys.executable} -m {install_advice(own.extra)}"
        + (f"; or name an interpreter that has it: {other} PATH" if other else "")
    )


def install_advice(extra: str) -> str:
    """How to get what an extra has."""
    if extra not in VENVS:
        return f"pip install 'hocket[{extra}]'"
    return (
        f"its pins conflict with others': hocket venv {extra}, then {VENVS[extra].flag} "
        f"venvs/{extra}/bin/python (docs/{extra}.md)"
    )


def load_named(name: str, what: str) -> Callable[..., Any]:
    """A function or a class of the user's own, named as package.module:attr or file.py:attr; `what`
    is what messages call it."""
    module, separator, attribute = name.rpartition(":")
    if not (separator and attribute):
        raise UnknownNameError(f"{name!r} is no {what}: name it as package.module:function.")
    target = modules.target_of(name)
    if target is None:
        raise UnknownNameError(
            f"The {what} {name!r} cannot be imported: there is no module {module!r} in the current "
            f"folder or among what is installed in {sys.executable}."
        )
    found = modules.attribute(target)
    if not callable(found):
        raise UnknownNameError(f"The {what} {name!r} is a {type(found).__name__}, no function.")
    loaded: Callable[..., Any] = found
    return loaded


def _split(name: str) -> tuple[str, str]:
    if os.path.isfile(os.path.join(name, "policy.json")):  # a folder that `hocket train` wrote
        return "trained", name
    head, separator, argument = name.partition(":")
    if separator and argument.startswith("//"):
        argument = argument[2:]
    return head, argument


def _import(target: str) -> Any:
    """An attribute of a module of hocket's own."""
    module, _, attribute = target.partition(":")
    with rooms.explained():
        return getattr(importlib.import_module(module), attribute)


def _unknown(kind: Kind, name: str, head: str) -> UnknownNameError:
    known = names(kind)
    if os.path.isfile(name) and name.endswith(".py"):
        return UnknownNameError(
            f"Say which {_SINGULAR[kind]} of {name} is meant, after a colon: "
            f"{', '.join(f'{name}:{each}' for each in modules.names_in(name)) or 'it has none'}."
        )
    if "." in head and ":" in name:
        return UnknownNameError(
            f"{name!r} cannot be imported: there is no module {head!r} in the current folder or "
            f"among what is installed in {sys.executable}."
        )
    return UnknownNameError(
        f"No {_SINGULAR[kind]} is called {name!r}.{did_you_mean(head, known)} Known: "
        f"{', '.join(known)}; or give your own as my_file.py:Name or package.module:attr."
    )


def _config_of(found: Callable[..., Any]) -> type[Any]:
    """A dataclass of a plain callable's parameters, so that they become flags like any others."""
    try:
        parameters = inspect.signature(found).parameters.values()
        hints = typing.get_type_hints(found if inspect.isfunction(found) else found.__init__)
    except (TypeError, ValueError, NameError):
        return dataclasses.make_dataclass("Config", [])
    fields: list[Any] = []
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            continue
        kind = hints.get(parameter.name, type(parameter.default))
        if parameter.default is parameter.empty:
            fields.insert(0, (parameter.name, kind))
        elif isinstance(parameter.default, (list, dict, set)):
            default = dataclasses.field(default_factory=parameter.default.copy)
            fields.append((parameter.name, kind, default))
        else:
            fields.append((parameter.name, kind, dataclasses.field(default=parameter.default)))
    return dataclasses.make_dataclass("Config", fields, kw_only=True)
