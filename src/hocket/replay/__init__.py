"""How chunks are used: which actions of each are executed, and `ChunkReplay` for your own loop."""

from __future__ import annotations

from hocket.replay.answers import as_numpy, check_answer, finite_rows
from hocket.replay.loop import ChunkReplay
from hocket.replay.rules import ChunkRule, ReplayFirst, SharedRule, TemporalEnsemble, make_rule

__all__ = [
    "ChunkReplay",
    "ChunkRule",
    "ReplayFirst",
    "SharedRule",
    "TemporalEnsemble",
    "as_numpy",
    "check_answer",
    "finite_rows",
    "make_rule",
]
