"""Which flags `--help` shows: for a beginner ten in groups, the flags of what is named beside it,
and every flag with `--help-all`."""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import tyro

from hocket.cli.flags.flag import Flag, make_class
from hocket.cli.flags.settings import scan

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
    "ppo": ("gamma", "lam", "clip_value", "value_weight", "value_only"),
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
    boxes = [_group(name, [known[one] for one in of]) for name, of in groups.items()]
    return plain + boxes + settings


def _group(name: str, fields: Fields) -> tuple[str, Any]:
    """A box of flags that keep their names."""
    return name, tyro.conf.configure(tyro.conf.OmitArgPrefixes)(make_class(fields))


def _sentence(text: str) -> str:
    """The first sentence of a text."""
    return re.split(r"(?<=\.) ", text, maxsplit=1)[0]
