"""Dataclasses as flags: every field is one, and the string below a field is its help."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import shutil
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from hocket.core import plugins
from hocket.errors import UsageError


def parse(flags: type[Any], arguments: Sequence[str], *, verb: str) -> Any:
    """An instance of a dataclass of flags that needs nothing of any adapter."""
    whole = dataclasses.make_dataclass(
        flags.__name__, documented(flags), bases=(flags,), kw_only=True, frozen=True
    )
    return parse_flags(whole, arguments, verb=verb, about=flags.__doc__)


def parse_flags(
    flags: type[Any], arguments: Sequence[str], *, verb: str, about: str | None, default: Any = None
) -> Any:
    """An instance of a documented dataclass from the command line; exits on --help and misuse."""
    refuse_unknown(arguments, flags)
    # Lines that do not begin with a letter are left as they are; others would be joined again.
    width = shutil.get_terminal_size().columns - 1
    text = textwrap.fill(
        " ".join((about or "").split()), width, initial_indent="  ", subsequent_indent="  "
    )
    return tyro.cli(
        flags,
        args=list(arguments),
        default=default,
        prog=f"hocket {verb}",
        description=text,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def documented(flags: type[Any], *, last: Sequence[str] = ()) -> list[Any]:
    """The fields of a dataclass of flags, for `make_dataclass`: each with the string below it as
    its help, those named in `last` after the others."""
    texts, hints = field_docstrings(flags), get_type_hints(flags, include_extras=True)
    fields: list[Any] = []
    for field in sorted(dataclasses.fields(flags), key=lambda field: field.name in last):
        hint = described(hints[field.name], texts.get(field.name), field.default)
        required = field.default is dataclasses.MISSING
        fields.append((field.name, hint) if required else (field.name, hint, field.default))
    return fields


def described(annotation: Any, text: str | None, default: Any) -> Any:
    """The annotation with its help; defaults that say nothing (None, False) are not shown."""
    if default is None or default is False or default == ():
        return Annotated[annotation, tyro.conf.arg(help=text, help_behavior_hint="")]
    return Annotated[annotation, tyro.conf.arg(help=text)]


def field_docstrings(owner: type[Any]) -> dict[str, str]:
    """The strings under the fields of a class, which its source alone knows."""
    found: dict[str, str] = {}
    for parent in reversed(owner.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0]
        except (OSError, TypeError, SyntaxError):
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def refuse_unknown(arguments: Sequence[str], flags: type[Any]) -> None:
    """One short sentence for a flag that does not exist, with the nearest one that does."""
    known = {"--help"}
    for name, hint in get_type_hints(flags, include_extras=True).items():
        spelled = [part.name for part in get_args(hint)[1:] if getattr(part, "name", None)]
        flag = spelled[-1] if spelled else name
        if name.endswith("_config"):
            settings = dataclasses.fields(get_args(hint)[0])
            known |= {f"--{flag}.{field.name}" for field in settings}
            known |= {f"--{flag}.no-{field.name}" for field in settings}
        else:
            known |= {f"--{flag}", f"--no-{flag}"}
    known = {flag.replace("_", "-") for flag in known}
    for argument in arguments:
        flag = argument.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in known:
            raise UsageError(
                f"There is no flag {argument.partition('=')[0]}."
                f"{plugins.did_you_mean(flag, sorted(known))} --help lists all."
            )
