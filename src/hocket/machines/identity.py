"""What must be the same at every site, and what may differ but is told.

`code` has versions and hashes: of hocket, the packages, the modules of envs and policies, and the
files that their names and settings point at, weights and assets. Sites that differ there do not run
the same thing, and are refused. `hardware` has what may change the last bits of a result: the
processor, GPU and GL. Sites that differ there lower what a run says of its exactness.
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
    """The identity of this site for a configuration and the further modules and files it names."""
    # The last part of Python's version fixes faults.
    python = ".".join(platform.python_version_tuple()[:2])
    code = {**provenance.versions(), "python": python, "hocket": _hocket()}
    for module, file in provenance.sources(named, modules).items():
        code[f"code of {module}"] = provenance.sha256_of(file)
    for place in provenance.places_of(named, files):
        code[f"files of {place}"] = provenance.sha256_of_all(place)
    return {"code": code, "hardware": provenance.hardware()}


def differences(ours: Identity, theirs: Identity, part: str) -> list[str]:
    """The differences in one part of two identities, in words."""
    mine, other = ours.get(part, {}), theirs.get(part, {})
    return [
        f"{key}: {other.get(key, 'missing')} there, {mine.get(key, 'missing')} at the first site"
        for key in sorted({*mine, *other})
        if mine.get(key) != other.get(key)
    ]


@functools.cache
def _hocket() -> str:
    """The version and a hash of hocket's own source: a version alone does not tell two checkouts
    apart."""
    digest = provenance.sha256_of_all(Path(hocket.__file__).parent, ".py")
    return f"{hocket.__version__} {digest}"
