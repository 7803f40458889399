"""JSON files that are whole or not there, and values as strict JSON has them."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.errors import RunFolderError
from hocket.system.durable import write_atomic


def read_json(file: Path) -> Any:
    """What a report or a card holds; RunFolderError where it cannot be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise RunFolderError(f"Cannot read {file}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{file} is no JSON: {error}.") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it has {name}, which is no number of JSON's")


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """Write a whole file or nothing, with one key, or one entry of a list, on a line: people can
    read it, and it is written fast (indenting would cost seconds for 100,000 episodes)."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    parts = []
    for key, value in document.items():
        body = text(value)
        if isinstance(value, list) and value:
            body = "[\n  " + ",\n  ".join(text(entry) for entry in value) + "\n ]"
        parts.append(f" {text(key)}: {body}")
    write_atomic(file, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def plain(value: Any) -> Any:
    """The value as strict JSON has it: text keys, lists, None for what is no finite number."""
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int)) else str(value)
