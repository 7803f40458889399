"""What a run gives to whoever runs its trials on other machines, which is no part of this layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hocket.core.contracts.recorder import Reader
from hocket.core.data import Episode, Exactness, Ref, Trial
from hocket.core.specs import EnvSpec
from hocket.records.folder import RunFolder
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.writer import ReceivesFiles, RowRecorder
from hocket.records.program import Known


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Keeping:
    """How the results of a run are kept. By default nothing is: its episodes are used up at once,
    and each is as durable as it will be once readers were told."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    """The number of the next attempt, by trial id, at trials that have had some."""
    standing: Sequence[tuple[Trial, int]] = ()
    """Attempts of an earlier process, of which it is not known what became."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What is kept by key."""
    leg: int = 0
    attach: Callable[[RowRecorder], None] | None = None
    """Takes who makes rows of chunks; None where none are kept."""
    receivers: Mapping[str, ReceivesFiles] = field(default_factory=dict)
    """Who takes the bytes of files instead of the files, by the files' names."""
    programs: Sequence[Known] = ()
    """What the episodes that count depend on: sites are held to one of these."""
    specs: Mapping[tuple[str, str], EnvSpec] = field(default_factory=dict)
    """What the envs of those episodes were, by suite and task."""
    begin_leg: Callable[[str], int | None] = lambda _: None
    """Begins the leg of a site with this name, and gives its number."""
    describe_leg: Callable[[Any, Known], None] = lambda *_: None
    """Keeps what a leg depends on."""
    committed: Callable[[], float] = lambda: math.inf
    """Counts the episodes that are durable, in the order in which readers were told of them."""
    forget: Callable[[Trial, int], None] = lambda *_: None
    """Settles an attempt that was never made."""
    keep: Callable[[str, Any], None] = lambda *_: None
    """Keeps a plain value under a key."""

    @classmethod
    def of(cls, ledger: Ledger) -> Keeping:
        """As a ledger keeps them."""
        return cls(
            numbers=ledger.next_attempts(),
            standing=ledger.unsettled(),
            facts=ledger.meta(),
            leg=ledger.leg,
            programs=[leg.provenance for leg in ledger.legs() if leg.provenance],
            specs=ledger.specs(),
            begin_leg=ledger.begin_leg,
            describe_leg=ledger.describe_leg,
            attach=ledger.attach,
            receivers=ledger.receivers,
            committed=lambda: ledger.committed,
            forget=ledger.forget,
            keep=ledger.keep,
        )


class RunsAnywhere(Protocol):
    """What sites are told of a run: its configuration."""

    @property
    def retries(self) -> int: ...

    def to_plain(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """What remains of a run. The events of whoever does it go to `readers`, the ledger first."""

    config: RunsAnywhere
    folder: RunFolder
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
    keeping: Keeping = field(default_factory=Keeping)
    kind: str = "eval"
    """What sites do, as in the protocol's Welcome."""
    start: Mapping[str, Any] = field(default_factory=dict)
    """What else sites must know."""
    mixed: bool = False
    """True if sites may run another program than that of the folder."""
    in_order: bool = False
    """True if trials are begun as they were planned."""
    at_once: int = 0
    """Episodes for which a site counts its lanes; 0 for all that remain."""


class Elsewhere(Protocol):
    """Other machines."""

    def roll(self, work: Work) -> None:
        """Run what remains to its end, or until Ctrl-C. The first event is RunStarted, the last
        RunEnded."""
