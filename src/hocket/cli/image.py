"""`hocket image`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from hocket.cli.flags.parse import parse


@dataclass(frozen=True, kw_only=True)
class Image:
    """Write a Dockerfile for a simulator, to be built by --runtime docker --runtime.dockerfile.
    What it installs can be changed; the image needs Python 3.10 or later, numpy, gymnasium, the
    simulator, and av for videos, and nothing of hocket's."""

    name: Positional[Literal["metaworld", "libero"]]
    """The simulator."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Where to write it; by default docker/NAME. A Dockerfile that is there stays as it is."""


def run(arguments: Sequence[str]) -> int:
    """Write it; 1 where one of another content is there."""
    flags = parse(Image, arguments, verb="image")
    from hocket import cli
    from hocket.workers.containers.images import dockerfile

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
