"""One of two runs that are compared, and what a sequential test says of the two."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Array, Episode, Exactness, Outcome, Trial
from hocket.records.folder import RunFolder
from hocket.records.ledger.episodes import COLUMNS, OUTCOMES, Episodes, Trials, common_rows
from hocket.records.ledger.view import LedgerView
from hocket.records.run_file import load_about
from hocket.results.card import Card, is_card
from hocket.results.comparing.sequential import KEY, Decision, PairedRuns, PairedSequentialTest
from hocket.results.exactness import Claim, kept_claim
from hocket.results.report import Report
from hocket.results.stats import LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    folder: Path
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    claim: Claim
    trials: Trials
    """All that were planned, in planned order."""
    ended: Episodes
    """The episodes of those that ended, errors included; numbers of them alone where no more was
    asked for."""
    decision: Decision | None = None
    """What the comparison that this run was to decide came to."""
    independent_starts: bool = False
    """True if its trials of one seed start independently of each other."""

    @classmethod
    def open(cls, folder: str | Path, columns: Sequence[str] = COLUMNS) -> Side:
        """Read a run folder: its ledger, of which NUMBERS are enough to compare, or its report
        where it has none; or a card."""
        if is_card(Path(folder)):
            card = Card.load(Path(folder))
            return cls.of_report(card.report, Path(folder).absolute(), card.trials)
        root = RunFolder.at(Path(folder))
        if not root.ledger.exists():
            report = Report.load(root.root)
            return cls.of_report(report, root.root, report.episodes.trials)
        about = load_about(root.root)
        with LedgerView.open(root) as ledger:
            meta, (trials, ended) = ledger.meta(), ledger.read(columns)
            return cls(
                folder=root.root,
                config=meta.get("config", {}),
                versions=_versions(about),
                claim=kept_claim(ledger, about),
                trials=trials,
                ended=ended,
                decision=Decision.from_json(meta[KEY]) if KEY in meta else None,
                independent_starts=bool(meta.get("independent_starts", False)),
            )

    @classmethod
    def of_report(cls, report: Report, path: Path, trials: Sequence[Trial]) -> Side:
        """What a report says of a run with these trials; `path` is what it is called by."""
        return cls(
            folder=path,
            config=report.config,
            versions=_versions(report.provenance),
            claim=report.claim,
            trials=trials if isinstance(trials, Trials) else Trials.of(trials),
            ended=report.episodes,
            decision=report.decision,
            independent_starts=report.independent_starts,
        )

    @property
    def episodes(self) -> Mapping[Trial, Episode]:
        """The episode of each trial that ended."""
        return self.ended.by_trial

    def of_plan(self, column: str, missing: float) -> Array:
        """A column of the episodes, with a row for each planned trial."""
        values = self.ended.columns[column]
        known = np.full(len(self.trials), missing, values.dtype)
        planned, ended = common_rows(self.trials, self.ended.trials)
        known[planned] = values[ended]
        return known

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def exactness(self) -> Exactness:
        return self.claim.level

    @property
    def policy(self) -> str:
        return str(self.config.get("policy", "?"))

    @property
    def subject(self) -> str:
        """The policy, and how the world went on while it thought, where it did."""
        method = self.config.get("method") or "pause"
        if method == "pause":
            return self.policy
        return f"{self.policy} --delay {self.config.get('delay', 0)} --method {method}"

    @property
    def complete(self) -> bool:
        return len(self.ended) == len(self.trials)

    @property
    def stops_when_decided(self) -> bool:
        return self.config.get("until") == "decided"

    @property
    def errors(self) -> int:
        return len(self.ended.rows(Outcome.ERROR))


def _versions(about: Mapping[str, Any]) -> Mapping[str, str]:
    versions = about.get("versions")
    return versions if isinstance(versions, dict) else {}


def decide(a: Side, b: Side, trials: Trials, ours: Array, theirs: Array) -> Decision:
    """What the sequential test says of the complete rounds at the beginning of the plan, each of
    one trial for each task; `ours` and `theirs` are outcomes. Where one run stopped by its
    comparison with the other, the decision that stopped it stands, with the interval of all that
    was run."""
    rounds: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(trials.seed.tolist(), trials.repeat.tolist(), strict=True)):
        rounds.setdefault(key, []).append(row)
    size = max(map(len, rounds.values()))
    are_independent = a.independent_starts and b.independent_starts
    stopped = next((side for side in (a, b) if side.stops_when_decided), a)
    test = PairedSequentialTest(
        alpha=stopped.config.get("alpha", 1 - LEVEL),
        pairs_per_round=size,
        bets_on="pairs" if are_independent else "rounds",
    )
    runs = PairedRuns(test)
    for some in rounds.values():
        codes = [side[some].tolist() for side in (ours, theirs)]
        if min(map(min, codes)) < 0:
            break
        if len(some) == size:
            runs.see(*([OUTCOMES[code] for code in side] for side in codes))
    computed = runs.decision(str(b.folder.resolve()))
    kept = _kept_decision(a, b)
    return computed if kept is None else dataclasses.replace(kept, interval=computed.interval)


def _kept_decision(a: Side, b: Side) -> Decision | None:
    """The decision that one of two runs keeps about the other, as seen from a."""
    homes = [str(side.folder.resolve()) for side in (a, b)]
    if a.decision is not None and a.decision.against == homes[1]:
        return a.decision
    if b.decision is not None and b.decision.against == homes[0]:
        return b.decision.mirrored(homes[1])
    return None
