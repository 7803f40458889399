"""The steps of attempts that ended in an error: a file each, in no table."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hocket.core.data import Array
from hocket.errors import RunFolderError
from hocket.system.durable import drafted

FILE = "steps.npz"
"""Holds the arrays `rows`, a structured one with a row for each step, and `said`, the bytes of a
JSON object with `prompt` and `layout`."""


def join_portions(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """The rows that were spilled in portions, each followed by what is said beside them; widths
    differ where a portion has no observation."""
    portions, said = arrays[0::2][: len(arrays) // 2], arrays[1::2]
    if not said:
        raise RunFolderError("No whole portion of steps was spilled.")
    widest = {name: max(p[name].shape[1] for p in portions) for name in ("action", "state")}
    kind = np.dtype(
        [
            (name, portions[0].dtype[name].base, (widest[name],) if name in widest else ())
            for name in portions[0].dtype.names or ()
        ]
    )
    joined = np.zeros(sum(map(len, portions)), kind)
    begin = 0
    for portion in portions:
        rows = joined[begin : begin + len(portion)]
        for name in kind.names or ():
            if name in widest:
                rows[name][:, : portion[name].shape[1]] = portion[name]
            else:
                rows[name] = portion[name]
        begin += len(portion)
    return joined, said[-1]


def save_error_steps(path: Path, rows: Array, said: Array) -> None:
    """Keep the steps of an attempt that ended in an error, durably."""
    with drafted(path) as draft:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            np.savez(file, rows=rows, said=said)


def load_error_steps(path: Path) -> Array:
    """The steps of an attempt that ended in an error, a row each: `step`, `action`, `reward` ..."""
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            rows: Array = file["rows"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as exc:
        raise RunFolderError(f"The steps in {str(path)!r} cannot be read: {exc}") from exc
    return rows
