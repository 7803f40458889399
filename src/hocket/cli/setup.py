"""The verbs that set a machine up: `hocket doctor`, `hocket image` and `hocket venv`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from hocket.cli.flags.parse import parse
from hocket.errors import UsageError
from hocket.system.venvs import build
from hocket.system.venvs.table import VENVS

if TYPE_CHECKING:
    from rich.table import Table

    from hocket.runs.checks.doctor import Verdict

_STYLE = {"ok": "green", "slow": "yellow", "missing": "red"}


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what works on this machine: cores and memory, which runtimes can be used, which backends
    render, on what device and how fast, installed extras, video codecs, and every env and policy
    that has a name. What is missing comes with the exact command that installs it."""

    json: bool = False
    """Print JSON instead of a table."""


def doctor(arguments: Sequence[str]) -> int:
    """Print the findings; always 0: a machine is not wrong."""
    flags = parse(Doctor, arguments, verb="doctor")
    from hocket import cli
    from hocket.results.terminal import Console
    from hocket.runs.checks.doctor import examine, registry

    findings = examine()
    if flags.json:
        document = {
            "findings": [finding._asdict() for finding in findings],
            "registry": registry(),
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        Console().print(_findings(findings, registry()))
    return cli.OK


def _findings(findings: Sequence[Verdict], names: dict[str, Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("", "", "state", "detail"):
        table.add_column(column, overflow="fold")
    topic = ""
    for finding in findings:
        table.add_row(
            "" if finding.topic == topic else finding.topic,
            finding.name,
            Text(finding.state, style=_STYLE[finding.state]),
            Text(finding.detail + (f"\n> {finding.advice}" if finding.advice else "")),
        )
        topic = finding.topic
    for number, (kind, known) in enumerate(names.items()):
        table.add_row("" if number else "names", kind, "", Text(", ".join(known)))
    return table


@dataclass(frozen=True, kw_only=True)
class Image:
    """Write a Dockerfile for a simulator, to be built by --runtime docker --runtime.dockerfile.
    What it installs can be changed; the image needs Python 3.10 or later, numpy, gymnasium, the
    simulator, and av for videos, and nothing of hocket's."""

    name: Positional[Literal["metaworld", "libero"]]
    """The simulator."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to write it; by default docker/NAME. A Dockerfile that is there stays as it is."""


def image(arguments: Sequence[str]) -> int:
    """Write it; 1 where one of another content is there."""
    flags = parse(Image, arguments, verb="image")
    from hocket import cli
    from hocket.workers.containers.command import dockerfile

    folder = flags.out or Path("docker") / flags.name
    path, text = folder / "Dockerfile", dockerfile(flags.name)
    if path.exists() and path.read_text() != text:
        sys.stderr.write(f"hocket: {path} exists and differs. Remove it, or choose --out FOLDER.\n")
        return cli.FAILED
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    sys.stdout.write(
        f"{path}\nUse it with: hocket eval --env {flags.name}:... --policy ... --runtime docker "
        f"--runtime.dockerfile {folder}\n"
    )
    return cli.OK


@dataclass(frozen=True, kw_only=True)
class Venvs:
    """Build an interpreter for a simulator or policies whose packages conflict with others', and
    give it to --env-python or --policy-python. With no name: list what there is. One that is built
    stays as it is; remove its folder to build it again. Each is made for one version of Python,
    found on PATH or among pyenv's, or named by PYTHON311 or PYTHON312."""

    names: Positional[Annotated[tuple[str, ...], arg(metavar="NAME ...")]] = ()
    """Which to build, one after the other."""
    all: bool = False
    """Build all whose Python is found."""
    skip: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = ()
    """With --all: which to leave out."""
    folder: Path = build.FOLDER
    """Where they are."""


def venv(arguments: Sequence[str]) -> int:
    """Build or list them; 1 where one could not be built."""
    flags = parse(Venvs, arguments, verb="venv")
    from hocket import cli

    for name in flags.names:
        build.venv_named(name)
    if flags.all and flags.names:
        raise UsageError("--all builds all of them: leave out the names, or --all.")
    if flags.skip and not flags.all:
        raise UsageError("--skip belongs to --all: name those to build, or add --all.")
    names = list(flags.names)
    if flags.all:
        names += [name for name in VENVS if name not in flags.skip]
    if not names:
        sys.stdout.write(listed(flags.folder))
        return cli.OK
    for name in names:
        _build(name, flags.folder, is_named=name in flags.names)
    return cli.OK


def _build(name: str, folder: Path, *, is_named: bool) -> None:
    row, path = VENVS[name], folder / name
    if build.is_built(name, folder):
        sys.stdout.write(f"{path} is ready\n")
        return
    if not is_named and build.find_python(row.python) is None:
        sys.stdout.write(
            f"{path} is left out: no Python {row.python} is found "
            f"(set {build.variable_of(row.python)})\n"
        )
        return
    sys.stdout.write(f"building {path} (some minutes)\n")
    sys.stdout.flush()
    build.build(name, folder)
    sys.stdout.write(f"use it with: {row.flag} {path}/bin/python\n")
    if lacks := build.lacking(row):
        sys.stdout.write(f"cameras need libraries: sudo apt-get install {' '.join(lacks)}\n")


def listed(folder: Path) -> str:
    """A table of all venvs: which are built, and what each is for."""
    rows = [("venv", "Python", "built", "flag", "what it has")]
    for name, row in VENVS.items():
        state = "yes" if build.is_built(name, folder) else "no"
        rows.append((name, row.python, state, row.flag, row.about))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", f"hocket venv NAME builds one, in {folder}/NAME.", ""])
