"""The curves of a training run, read from its metrics as they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hocket.errors import HocketError
from hocket.records.run_file import load_run

METRICS = "metrics.jsonl"
SHOWN = (
    "train/success",
    "train/return",
    "learn/staleness",
    "learn/max_staleness",
    "learn/kl",
    "learn/entropy",
    "learn/clip_share",
    "time/collecting",
    "time/inferring",
    "time/stepping",
    "time/learning",
    "eval/success",
    "eval/success_low",
    "eval/success_high",
    "eval/return",
)
_OF_EVALUATIONS = (
    "env_steps",
    "n",
    "errors",
    "eval/success",
    "eval/success_low",
    "eval/success_high",
    "eval/return",
)
_MOST_POINTS = 2000
"""Points of a curve; of more, every second is left out until they are fewer."""


class Curves:
    """Points of the curves of a run by name, each `[env_steps, value]`; none where it does not
    train."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / METRICS
        self._read = 0
        self._points: dict[str, list[list[float]]] = {}
        self._last: dict[str, Any] = {}
        self._evaluations: list[dict[str, Any]] = []
        self._warnings: list[str] = []
        self._total: int | None = None

    def update(self) -> dict[str, Any] | None:
        """Read the lines that were added; all curves where there were some, None otherwise."""
        try:
            size = self._path.stat().st_size
        except OSError:
            return None
        if size < self._read:
            # A resumed run has cut away what did not happen.
            self._read, self._points, self._evaluations, self._warnings = 0, {}, [], []
        if size == self._read:
            return None
        with open(self._path, "rb") as file:
            file.seek(self._read)
            data = file.read(size - self._read)
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._add(line)
        return self.all() if whole else None

    def all(self) -> dict[str, Any]:
        return {
            "points": self._points,
            "evaluations": self._evaluations[-200:],
            "warnings": self._warnings[-5:],
        }

    def about(self) -> dict[str, Any] | None:
        """How far training is; None of a run that does not train."""
        if not self._last and not self._path.exists():
            return None
        if self._total is None:
            try:
                self._total = int(load_run(self._folder).get("steps", 0))
            except (HocketError, TypeError, ValueError):
                self._total = 0
        return {
            "env_steps": self._last.get("env_steps", 0),
            "steps": self._total,
            "wall_s": self._last.get("wall_s", 0.0),
            "updates": self._last.get("count/updates"),
            "lost_attempts": self._last.get("count/lost_attempts"),
        }

    def _add(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            steps = int(record["env_steps"])
        except (ValueError, KeyError, TypeError):
            return
        if record.get("kind") == "update":
            self._last = record
        elif record.get("kind") == "eval":
            self._evaluations.append({key: record.get(key) for key in _OF_EVALUATIONS})
        elif record.get("kind") == "warning":
            self._warnings.append(str(record.get("text", "")))
        for name in SHOWN:
            if isinstance(value := record.get(name), (int, float)):
                points = self._points.setdefault(name, [])
                points.append([steps, value])
                if len(points) > _MOST_POINTS:
                    del points[1:-1:2]
