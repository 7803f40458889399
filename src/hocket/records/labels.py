"""Labels that people give to episodes: `labels.jsonl` in the run folder, a line for each time that
somebody labelled one. The last line of a trial counts. The ledger knows nothing of them.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.core.data import Trial
from hocket.errors import ConfigError
from hocket.system.durable import disk_error

FILE_NAME = "labels.jsonl"
KNOWN = ("dropped", "missed", "wrong object")
"""Labels that have a key of their own; any other words are one too."""
LONGEST = 200
"""Letters of a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What somebody said of a trial's episode."""

    trial: str
    """The trial's id."""
    attempt: int
    """The attempt that was looked at."""
    text: str
    at: str
    """When, in UTC, as ISO 8601 has it."""

    def to_plain(self) -> dict[str, Any]:
        return {"trial": self.trial, "attempt": self.attempt, "label": self.text, "at": self.at}


def labels_file(folder: Path) -> Path:
    return folder / FILE_NAME


def add_label(folder: Path, trial: Trial, attempt: int, text: str) -> Label:
    """Label an episode, or take its label away with no words. One line is written at once, so that
    several people may label at the same time."""
    words = " ".join(text.split())
    if len(words) > LONGEST:
        raise ConfigError(f"A label has at most {LONGEST} letters; this one has {len(words)}.")
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    label = Label(trial=trial.id, attempt=attempt, text=words, at=at)
    line = json.dumps(label.to_plain(), ensure_ascii=False) + "\n"
    path = labels_file(folder)
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
    except OSError as exc:
        raise disk_error(exc, path) from exc
    return label


def load_labels(folder: Path) -> dict[str, Label]:
    """The label of each trial that has one, by trial id. Lines that cannot be read are left out: a
    file that people may edit must not cost a report."""
    try:
        lines = labels_file(folder).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, Label] = {}
    for line in lines:
        try:
            plain = json.loads(line)
            label = Label(
                trial=str(plain["trial"]),
                attempt=int(plain.get("attempt", 0)),
                text=" ".join(str(plain["label"] or "").split())[:LONGEST],
                at=str(plain.get("at", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        found.pop(label.trial, None)
        if label.text:
            found[label.trial] = label
    return found
