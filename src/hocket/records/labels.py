"""Labels that people give to episodes: `labels.jsonl` in the run folder, a line for each time that
somebody labelled one. The last line of a trial counts. The ledger knows nothing of them.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from hocket.core.data import Trial
from hocket.errors import ConfigError
from hocket.system.durable import disk_error

FILE_NAME = "labels.jsonl"
LONGEST = 200
"""Letters of a label."""


def labels_file(folder: Path) -> Path:
    return folder / FILE_NAME


def add_label(folder: Path, trial: Trial, attempt: int, text: str) -> None:
    """Label the episode of an attempt that was looked at; no words take its label away. A line is
    written at once, so that several people may label at the same time."""
    words = " ".join(text.split())
    if len(words) > LONGEST:
        raise ConfigError(f"A label has at most {LONGEST} letters; this one has {len(words)}.")
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    label = {"trial": trial.id, "attempt": attempt, "label": words, "at": at}
    line = json.dumps(label, ensure_ascii=False) + "\n"
    path = labels_file(folder)
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
    except OSError as exc:
        raise disk_error(exc, path) from exc


def load_labels(folder: Path) -> dict[str, str]:
    """The label of each trial that has one, by trial id. Lines that cannot be read are left out: a
    file that people may edit must not cost a report."""
    try:
        lines = labels_file(folder).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        try:
            plain = json.loads(line)
            trial, text = str(plain["trial"]), " ".join(str(plain["label"] or "").split())
        except (ValueError, KeyError, TypeError):
            continue
        found.pop(trial, None)
        if text:
            found[trial] = text[:LONGEST]
    return found
