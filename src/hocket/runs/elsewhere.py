"""What a run gives to whoever runs its trials on other machines, which is no part of this layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hocket.core.contracts.recorder import Reader
from hocket.core.data import Episode, Exactness, Ref, Trial
from hocket.records.ledger.ledger import Ledger
from hocket.runs.config import EvalConfig


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """What remains of a run. The events of whoever does it go to `readers`, the ledger first."""

    config: EvalConfig
    ledger: Ledger
    planned: Sequence[Trial]
    """All trials of the run; more may be planned while it goes on."""
    remaining: Sequence[Trial]
    done: Sequence[Episode]
    readers: Sequence[Reader]
    sinks: tuple[Ref, ...]
    """What is recorded of each attempt."""
    record: Callable[[Trial, int], Mapping[str, Any]]
    """What the sinks are asked for in an attempt."""
    begin: Callable[[Callable[[Sequence[Trial]], None]], None]
    """To be called once, with a function that takes further trials."""
    learn: Callable[[Exactness, Mapping[str, Any]], None]
    """To be told how exact the results can be at most, and what is to stand in `about`."""


class Elsewhere(Protocol):
    """Other machines."""

    def roll(self, work: Work) -> None:
        """Run what remains to its end, or until Ctrl-C. The first event is RunStarted, the last
        RunEnded."""
