"""Whether two parts of a run, its legs and sites, ran the same program.

The program is what `provenance` says of packages, code, weights and other files, and where the
policy came from. Parts that differ there are no one run: whoever resumes a run or joins it is held
to what its folder says. Hardware and drivers may change last bits, and are noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hocket.errors import UsageError

Known = Mapping[str, Any]
"""What `provenance` gives of a leg or a site, with its `files` and its `policy` once they are
known, and under `changed` what was found while it went on."""
_PARTS = {"versions": "", "code": "code of ", "files": "file ", "policy": "policy's "}
_DIGITS = 12
"""Of a digest or a commit, in words."""


def changes(before: Known, now: Known, *, hardware: bool = False) -> list[str]:
    """The differences in the program, or in the hardware, in words; only what is known `now` is
    compared."""
    parts = {"hardware": ""} if hardware else _PARTS
    found = []
    for part in [part for part in parts if part in now]:
        old, new = dict(before.get(part, {})), dict(now[part])
        found += [
            f"{parts[part]}{name}: {_told(old.get(name))} before, {_told(new.get(name))} now"
            for name in dict.fromkeys([*old, *new])
            if _essence(name, old.get(name)) != _essence(name, new.get(name))
        ]
    return found


def unlike(earlier: Iterable[Known], now: Known) -> list[str]:
    """How this differs from the earlier program that is nearest to it; empty where it is one of
    them, or where there is none."""
    return min((changes(one, now) for one in earlier), key=len, default=[])


def hold(found: Sequence[str], advice: str, *, allows: bool) -> None:
    """Refuse to go on with a run whose folder differs in this, unless that is allowed."""
    if found and not allows:
        raise UsageError(
            f"The run folder holds what another program made: {'; '.join(found)}. Restore what it "
            f"was, begin a new run, or {advice}: the report then tells both apart, and claims no "
            "exactness."
        )


def _essence(name: str, value: Any) -> Any:
    """What must be the same: the digest of code whatever its commit, and of Python's version all
    but the last part, which fixes faults."""
    if isinstance(value, Mapping):
        return value.get("sha256")
    is_python = name == "python" and isinstance(value, str)
    return value.rpartition(".")[0] if is_python else value


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        commit = f" (commit {value['commit'][:_DIGITS]})" if "commit" in value else ""
        return f"{_told(value.get('sha256'))}{commit}"
    if value is None:
        return "missing"
    return value[:_DIGITS] if isinstance(value, str) and len(value) == 64 else str(value)
