"""Reads a .safetensors file: numbers under names, and nothing that could be executed.

The format is a JSON table behind its length, and then the bytes. Reading it here means that a
weights file needs no package beyond torch.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.errors import ConfigError

if TYPE_CHECKING:
    import torch

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_LONGEST_TABLE = 100_000_000


def read_safetensors(path: str | Path) -> dict[str, torch.Tensor]:
    """Every tensor of the file, by name."""
    try:
        with open(path, "rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else _LONGEST_TABLE + 1
            if length > _LONGEST_TABLE:
                raise ValueError("its table of contents has no sensible length")
            table = json.loads(file.read(length))
            data = bytearray(file.read())
        return {
            name: _tensor(name, entry, data)
            for name, entry in table.items()
            if name != "__metadata__"
        }
    except OSError as exc:
        raise ConfigError(f"Weights {str(path)!r} cannot be read: {exc}") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConfigError(f"{str(path)!r} is no sound .safetensors file: {exc}") from exc


def _tensor(name: str, entry: dict[str, Any], data: bytearray) -> torch.Tensor:
    import torch

    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"{name!r} has dtype {entry['dtype']!r}, which is not known here")
    dtype = getattr(torch, _DTYPES[entry["dtype"]])
    shape = tuple(int(size) for size in entry["shape"])
    begin, end = entry["data_offsets"]
    count = math.prod(shape)
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= len(data):
        raise ValueError(f"{name!r} lies outside of the file")
    if end - begin != count * dtype.itemsize:
        raise ValueError(f"{name!r} has {end - begin} bytes for shape {shape}")
    if not count:
        return torch.empty(shape, dtype=dtype)
    # Copied, since views of one buffer may start where their dtype must not.
    return torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).reshape(shape)
