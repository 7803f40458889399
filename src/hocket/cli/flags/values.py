"""How values are spelled on the command line: `a,b`, `2G`, `1:128`, `75+8.5B`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any

import yaml
from tyro.conf import arg
from tyro.constructors import PrimitiveConstructorSpec

from hocket.system.bounded_yaml import load_yaml

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_names(text: str) -> tuple[str, ...]:
    """`a,b` as names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_bytes(text: str) -> int | None:
    """`2G`, `512M`, `1500000`; `none` for no limit."""
    if text.lower() == "none":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no amount of memory; write 2G, 512M or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2]])


def format_bytes(amount: int | None) -> str:
    """`2G`, `1.5M`: what `parse_bytes` reads, rounded."""
    if amount is None:
        return "none"
    for unit in ("t", "g", "m", "k"):
        if amount >= _UNITS[unit]:
            return f"{round(amount / _UNITS[unit], 2):g}{unit.upper()}"
    return str(amount)


def parse_counts(text: str) -> tuple[int, ...]:
    """`1:128` doubles from 1 up to 128; `1,8,24` is these; `32` is one."""
    try:
        if ":" in text:
            first, last = (int(part) for part in text.split(":"))
            counts = [first]
            while 0 < counts[-1] < last:
                counts.append(min(counts[-1] * 2, last))
        else:
            counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or counts != sorted(counts):
        raise ValueError(f"{text!r} names no numbers; write 1:128, or 1,8,64")
    return tuple(counts)


def parse_latency(text: str) -> dict[int, float]:
    """Batch size to seconds, from `75+8.5B` (ms: a constant and a part per row) or `1=75,8=116`."""
    line = re.fullmatch(r"\s*([\d.]+)\s*(?:\+\s*([\d.]+)\s*\*?\s*[bB])?\s*", text)
    try:
        if line is not None:
            constant, slope = float(line[1]), float(line[2] or 0)
            return {size: (constant + slope * size) / 1e3 for size in (1, 2)}
        pairs = [pair.split("=") for pair in text.split(",")]
        points = {int(size): float(ms) / 1e3 for size, ms in pairs}
    except ValueError:
        points = {}
    if not points or min(points) < 1:
        raise ValueError(f"{text!r} is no latency; write 75+8.5B, or 1=75,8=116 (milliseconds)")
    return points


def parse_pairs(words: Sequence[str]) -> dict[str, str]:
    """`a b c d`, `a=b c=d` or `{a: b, c: d}` as pairs."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            found = load_yaml(words[0])
        except yaml.YAMLError as exc:
            raise ValueError(f"{words[0]!r} is no YAML") from exc
        return {str(key): str(value) for key, value in found.items()}
    parts = list(words)
    if all("=" in word for word in words):
        parts = [part for word in words for part in word.split("=", 1)]
    if len(parts) % 2:
        raise ValueError(f"{' '.join(words)!r} is no pairs; write KEY VALUE, or KEY=VALUE")
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _spelled(
    metavar: str,
    parse: Callable[[str], Any],
    spell: Callable[[Any], str],
    kind: type | tuple[type, ...] = object,
) -> PrimitiveConstructorSpec[Any]:
    """How tyro reads one word, and shows a default of this `kind`."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda texts: parse(texts[0]),
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: [spell(value)],
    )


def _names(metavar: str) -> PrimitiveConstructorSpec[tuple[str, ...]]:
    return _spelled(metavar, parse_names, ",".join, tuple)


Names = Annotated[tuple[str, ...], _names("NAME[,NAME...]")]
Readers = Annotated[tuple[str, ...], _names("NAME[=ARG][,...]")]
Words = Annotated[
    tuple[str, ...],
    dataclasses.replace(
        _names("NAME[,NAME...]"),
        nargs="*",
        instance_from_str=lambda texts: parse_names(",".join(texts)),
    ),
]
"""Names that may also be given one by one: `a b`."""
Pairs = Annotated[
    Mapping[str, str],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY VALUE ...",
        instance_from_str=parse_pairs,
        is_instance=lambda value: isinstance(value, Mapping),
        str_from_instance=lambda value: [part for pair in value.items() for part in pair],
    ),
]
Yaml = Annotated[Any, _spelled("YAML", load_yaml, repr)]
_BYTES = _spelled("2G", parse_bytes, format_bytes, (int, NoneType))
Bytes = Annotated[int | None, _BYTES]
Counts = Annotated[
    tuple[int, ...],
    _spelled("1:128", parse_counts, lambda value: ",".join(map(str, value)), tuple),
]
Latencies = Annotated[
    dict[int, float] | None,
    _spelled(
        "75+8.5B",
        parse_latency,
        lambda value: ",".join(f"{size}={s * 1e3:g}" for size, s in (value or {}).items()),
        (dict, NoneType),
    ),
]
Name = Annotated[str, arg(metavar="NAME")]

FIELDS: Mapping[str, Any] = {
    # What is run in what.
    "env": _names("NAME[,NAME...]"),
    "policy": arg(metavar="NAME"),
    "policy_devices": _names("DEVICE[,DEVICE...]"),
    "env_python": arg(metavar="PATH"),
    "policy_python": arg(metavar="PATH"),
    "runtime": arg(metavar="NAME[:ARG]"),
    "start_timeout_s": arg(name="start-timeout", metavar="SECONDS"),
    # How.
    "protocol": arg(metavar="NAME|FILE"),
    "lanes": arg(metavar="N|auto"),
    "replan": arg(metavar="K"),
    "ensemble": arg(metavar="M"),
    "delay": arg(metavar="STEPS|MS|A..B|measured[,...]"),
    "max_steps": arg(metavar="N"),
    "step_timeout_s": arg(name="step-timeout", metavar="SECONDS"),
    "infer_timeout_s": arg(name="infer-timeout", metavar="SECONDS"),
    "worker_memory": _BYTES,
    "recycle_after": arg(metavar="N"),
    "against": arg(metavar="RUN"),
    "alpha": arg(metavar="P"),
    "keep_errors": arg(metavar="N"),
    "video": arg(metavar="few|none|first:N|failures|all"),
    # Training.
    "data": _names("FOLDER[,FOLDER...]"),
    "reward": arg(metavar="[WEIGHT*]NAME[,...]"),
    "starts": arg(metavar="N"),
    "curriculum": arg(metavar="hard|MODULE:FUNCTION"),
    "data_episodes": arg(metavar="N"),
    "minutes": arg(metavar="M"),
    "stop_at": arg(metavar="SCORE"),
    "lr_end": arg(metavar="LR"),
    "clip_high": arg(metavar="SHARE"),
    "clip_value": arg(metavar="X"),
    "target_kl": arg(metavar="KL"),
    "ratio": arg(metavar="chunk|action"),
    "std": arg(metavar="STD"),
    "correction": arg(metavar="KIND"),
    "weights": arg(metavar="FILE"),
}
"""How fields of configurations are spelled, by name, where tyro would not find out by itself."""

SITE_FIELDS: Mapping[str, Any] = {
    "lease_s": arg(name="lease", metavar="SECONDS"),
    "key_file": arg(metavar="FILE"),
    "python": arg(metavar="PATH"),
    "folder": arg(metavar="PATH"),
    "cpus": arg(metavar="N"),
    "gpus": arg(metavar="N"),
    "memory": _BYTES,
    "runtime_env": arg(metavar="FILE"),
    "options": PrimitiveConstructorSpec(
        nargs="*",
        metavar="[STR [STR ...]]",
        instance_from_str=tuple,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=list,
    ),
}
"""The same for the flags --site.NAME."""
