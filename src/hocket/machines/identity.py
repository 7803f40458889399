"""What must be the same at every site, and what may differ but is told.

`code` has versions and hashes: hocket, the packages, the modules of envs and policies, and whatever
files their names and settings point at, weights and assets. A difference there means that sites do
not run the same thing, and is refused. `hardware` has what may change the last bits of a result:
processor, GPU and GL. A difference there lowers what a run says of its exactness.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import hocket
from hocket.records import provenance

Identity = Mapping[str, Mapping[str, str]]


def identity_of(
    named: provenance.Named, modules: Sequence[str] = (), files: Sequence[str] = ()
) -> dict[str, dict[str, str]]:
    """What this site is, for this configuration, and the further modules and files it names."""
    # The last part of Python's version fixes faults.
    python = ".".join(platform.python_version_tuple()[:2])
    code = {**provenance.versions(), "python": python, "hocket": _hocket()}
    for module, file in provenance.sources(named, modules).items():
        code[f"code of {module}"] = provenance.sha256_of(file)
    for place in provenance.places_of(named, files):
        code[f"files of {place}"] = provenance.sha256_of_all(place)
    return {"code": code, "hardware": provenance.hardware()}


def differences(ours: Identity, theirs: Identity, part: str) -> list[str]:
    """What differs in a part, in words."""
    mine, other = ours.get(part, {}), theirs.get(part, {})
    return [
        f"{key}: {_said(other.get(key))} there, {_said(mine.get(key))} at the first site"
        for key in sorted({*mine, *other})
        if mine.get(key) != other.get(key)
    ]


def _said(value: str | None) -> str:
    return "missing" if value is None else value


@functools.cache
def _hocket() -> str:
    """The version and a hash of hocket's own source: a version alone does not tell two checkouts
    apart."""
    digest = provenance.sha256_of_all(Path(hocket.__file__).parent, ".py")
    return f"{hocket.__version__} {digest}"
