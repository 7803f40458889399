"""What a run gives to whoever runs its trials on other machines, which is no part of this layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hocket.core.contracts.recorder import Reader
from hocket.core.data import Episode, Exactness, Ref, Trial
from hocket.records.chunks import ChunkRows
from hocket.records.folder import RunFolder
from hocket.records.ledger.writer import ReceivesFiles


class Kept(Reader, Protocol):
    """What a driver asks of whatever keeps the results of its run: a ledger has all of it."""

    @property
    def folder(self) -> RunFolder: ...

    @property
    def leg(self) -> int: ...

    @property
    def committed(self) -> int:
        """Episodes that are durable."""

    def attach(self, recorder: ChunkRows) -> None: ...

    @property
    def receivers(self) -> Mapping[str, ReceivesFiles]: ...

    def sync_files(self) -> None: ...

    def next_attempts(self) -> Mapping[str, int]: ...

    def unsettled(self) -> Sequence[tuple[Trial, int]]: ...

    def meta(self) -> Mapping[str, Any]: ...

    def keep(self, key: str, value: Any) -> None: ...

    def forget(self, trial: Trial, attempt: int) -> None: ...

    def choose(self, trial: Trial, attempt: int) -> None: ...

    def behind(self) -> bool: ...

    def flush(self) -> None: ...

    def unmade(self) -> int: ...


class RunsAnywhere(Protocol):
    """What sites are told of a run: its configuration."""

    @property
    def retries(self) -> int: ...

    def to_plain(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """What remains of a run. The events of whoever does it go to `readers`, the ledger first."""

    config: RunsAnywhere
    ledger: Kept
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
    """To be called once, before RunStarted, with a function that takes further trials."""
    learn: Callable[[Exactness, Mapping[str, Any]], None]
    """To be told how exact the results can be at most, and what is to stand in `about`."""
    kind: str = "eval"
    """What sites do, as in the protocol's Welcome."""
    start: Mapping[str, Any] = field(default_factory=dict)
    """What else sites must know."""
    in_order: bool = False
    """Whether trials are begun as they were planned."""
    at_once: int = 0
    """Episodes for which a site counts its lanes; 0 for all that remain."""


class Elsewhere(Protocol):
    """Other machines."""

    def roll(self, work: Work) -> None:
        """Run what remains to its end, or until Ctrl-C. The first event is RunStarted, the last
        RunEnded."""
