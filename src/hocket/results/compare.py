"""Two runs on the same trials: are they comparable, and which one is better?

Trials of the same name are the same trial only where the settings that make it are the same; runs
that differ there are refused. Whatever differs beyond that (policy, replanning, lanes ...) is what
the comparison is about, and is listed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Episode, Exactness, Outcome, Trial
from hocket.errors import UsageError
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.run_file import load_about
from hocket.results.config_diff import (
    setting_differences,
    trial_differences,
    version_differences,
)
from hocket.results.exactness import Claim, kept_claim
from hocket.results.paired import (
    CLAIMS,
    Comparison,
    Difference,
    Pairs,
    TasksAs,
    compare_rates,
    compare_returns,
)
from hocket.results.report import Report
from hocket.results.scores import bounds
from hocket.results.sequential import Look, PairedSequentialTest
from hocket.results.tables import UNDEFINED, ResultTable, TableRow, number, percent

_JUDGED = (Outcome.SUCCESS, Outcome.FAILURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    folder: Path
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    claim: Claim
    trials: tuple[Trial, ...]
    """All that were planned, in planned order."""
    episodes: Mapping[Trial, Episode]
    """The trials that ended, errors included."""

    @classmethod
    def open(cls, folder: str | Path) -> Side:
        """Read a run folder: its ledger, or its report where it has none."""
        root = RunFolder.at(Path(folder))
        about = load_about(root.root)
        versions = about.get("versions")
        if root.ledger.exists():
            with LedgerView.open(root) as ledger:
                trials, episodes = ledger.trials(), ledger.episodes()
                meta = ledger.meta()
            config, claim = meta.get("config", {}), kept_claim(meta, about)
        else:
            report = Report.load(root.root)
            episodes, config, claim = list(report.episodes), report.config, report.claim
            trials = [episode.trial for episode in episodes]
        return cls(
            folder=root.root,
            config=config,
            versions=versions if isinstance(versions, dict) else {},
            claim=claim,
            trials=tuple(trials),
            episodes={episode.trial: episode for episode in episodes},
        )

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
    def complete(self) -> bool:
        return len(self.episodes) == len(self.trials)

    @property
    def errors(self) -> int:
        return sum(e.outcome is Outcome.ERROR for e in self.episodes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """Common trials that make no pair, and why."""

    errors: int = 0
    """Trials that ended as an error on one side at least."""
    pending: int = 0
    """Trials that have not ended on one side at least."""
    unlike: int = 0
    """Trials that tell success on one side only, or on neither where other pairs do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs, paired by trial. Differences are a - b."""

    a: Side
    b: Side
    trials: tuple[Trial, ...]
    """Those that both runs planned, in planned order."""
    comparison: Comparison
    pairs: Pairs | None
    """Counts of paired successes; None where returns are compared."""
    excluded: Excluded
    notes: tuple[str, ...]
    look: Look | None
    """For runs that still go on: what the sequential test says of them now."""

    @property
    def sentence(self) -> str:
        return self.comparison.sentence

    def results(self) -> ResultTable:
        found = self.comparison
        shown = percent if found.of == "success" else number
        rows = [_row(task.task or "", "item", task, shown) for task in found.tasks]
        rows.append(_row("overall", "total", found.overall, shown))
        columns = ("task", "n", "a", "b", "a - b", "95 % interval", "p")
        claim = f"{found.of}, a claim {CLAIMS[found.tasks_as]}"
        footer = f"Compared: {claim}. p: {found.overall.test} overall."
        if len(found.tasks) > 1:
            footer += " The p of single tasks are not corrected for their number."
        return ResultTable(columns=columns, rows=tuple(rows), footer=footer)

    def to_json(self) -> dict[str, Any]:
        """Values that JSON has; None where one is undefined."""
        found, look = self.comparison, self.look
        return {
            "a": _side_json(self.a),
            "b": _side_json(self.b),
            "of": found.of,
            "tasks_as": found.tasks_as,
            "claim": CLAIMS[found.tasks_as],
            "verdict": found.verdict,
            "sentence": self.sentence,
            "overall": _difference_json(found.overall),
            "tasks": [_difference_json(task) for task in found.tasks],
            "pairs_needed" if found.tasks_as == "strata" else "tasks_needed": found.needed,
            "bootstrap_interval": bounds(found.bootstrap),
            "pairs": None
            if self.pairs is None
            else {name: getattr(self.pairs, name) for name in Pairs.__slots__},
            "excluded": {name: getattr(self.excluded, name) for name in Excluded.__slots__},
            "sequential": None
            if look is None
            else {"pairs": look.pairs, "decision": look.decision, "p": look.p_value},
            "notes": list(self.notes),
        }


def compare_runs(
    a: Side, b: Side, *, tasks_as: TasksAs = "strata", common: bool = False
) -> RunComparison:
    """Pair two runs by trial and compare them; runs of different trials are refused, unless only
    the `common` ones are asked for."""
    _refuse_different_trials(a, b, common=common)
    in_b = set(b.trials)
    trials = tuple(trial for trial in a.trials if trial in in_b)
    ended = [t for t in trials if t in a.episodes and t in b.episodes]
    sound = [t for t in ended if Outcome.ERROR not in _outcomes(a, b, t)]
    judged = [t for t in sound if all(each in _JUDGED for each in _outcomes(a, b, t))]
    finished = [t for t in sound if _outcomes(a, b, t) == (Outcome.FINISHED, Outcome.FINISHED)]
    names = task_names(trials)
    # Tasks stand in planned order, also where the first trial of one makes no pair.
    order = {name: index for index, name in enumerate(dict.fromkeys(names.values()))}
    for some in (judged, finished):
        some.sort(key=lambda trial: order[names[trial]])
    paired = judged or finished
    tasks = [names[trial] for trial in paired]
    pairs = None
    if judged or not finished:
        won_a, won_b = _won(a, judged), _won(b, judged)
        found = compare_rates(won_a, won_b, tasks, tasks_as=tasks_as)
        pairs = Pairs.of(won_a, won_b)
    else:
        # The bootstrap beside the t-interval: the same runs always give the same numbers.
        rng = np.random.default_rng(0)
        gave_a, gave_b = _gave(a, finished), _gave(b, finished)
        found = compare_returns(gave_a, gave_b, tasks, rng=rng, tasks_as=tasks_as)
    excluded = Excluded(
        errors=len(ended) - len(sound),
        pending=len(trials) - len(ended),
        unlike=len(sound) - len(paired),
    )
    look = None if (a.complete and b.complete) or not judged else _look(a, b, trials)
    return RunComparison(
        a=a,
        b=b,
        trials=trials,
        comparison=found,
        pairs=pairs,
        excluded=excluded,
        notes=tuple(_notes(a, b, trials, excluded, look)),
        look=look,
    )


def task_names(trials: Sequence[Trial]) -> dict[Trial, str]:
    """The task of each trial, with its suite where there are several."""
    several = len({trial.suite for trial in trials}) > 1
    return {t: f"{t.suite} / {t.task}" if several else t.task for t in trials}


def _refuse_different_trials(a: Side, b: Side, *, common: bool) -> None:
    settings = setting_differences(a.config, b.config)
    if settings:
        raise UsageError(
            "These runs cannot be paired: trials of the same name are different trials, since "
            f"{'; '.join(settings)}. Run one of them again with the settings of the other."
        )
    if not set(a.trials) & set(b.trials):
        raise UsageError(
            "These runs have no trial in common: "
            f"{'; '.join(trial_differences(a.trials, b.trials))}."
        )
    planned = trial_differences(a.trials, b.trials)
    if planned and not common:
        raise UsageError(
            f"These runs planned different trials: {'; '.join(planned)}. "
            "--common pairs only those that both have."
        )


def _notes(
    a: Side, b: Side, trials: Sequence[Trial], excluded: Excluded, look: Look | None
) -> list[str]:
    """Sentences that whoever reads the numbers must know, too."""
    notes = [
        f"{letter} is unfinished: {len(side.episodes):,} of {len(side.trials):,} trials have ended."
        " Those that end early are no fair sample; resume it before you quote a difference."
        for letter, side in (("a", a), ("b", b))
        if not side.complete
    ]
    if len(trials) < max(len(a.trials), len(b.trials)):
        notes.append(
            f"Only the {len(trials):,} trials that both planned are compared "
            f"(a planned {len(a.trials):,}, b {len(b.trials):,})."
        )
    if excluded.errors:
        notes.append(
            f"{_trials(excluded.errors)} left out: an error on one side at least "
            f"({a.errors:,} of a's trials are errors, {b.errors:,} of b's)."
        )
    if excluded.unlike:
        notes.append(f"{_trials(excluded.unlike)} left out: no success is told on both sides.")
    if a.claim == b.claim:
        notes.append(f"Exactness of both is {a.exactness}. {a.claim.sentence}")
    else:
        notes += [
            f"Exactness of {letter} is {side.exactness}. {side.claim.sentence}"
            for letter, side in (("a", a), ("b", b))
        ]
    versions = version_differences(a.versions, b.versions)
    if versions:
        notes.append(f"Made with different versions: {'; '.join(versions)}.")
    if look is not None:
        notes.append(
            "A run that goes on is looked at more than once, which the p above does not allow for. "
            f"The sequential test does: over the first {look.pairs:,} pairs of the plan it says "
            f"{look.decision} (p = {look.p_value:.2g})."
        )
    return notes


def _look(a: Side, b: Side, trials: Sequence[Trial]) -> Look:
    """The sequential test on the complete prefix of the plan: rounds of one trial for each task,
    as they are planned; a round with an error, or with nothing to succeed at, is left out."""
    rounds: dict[tuple[int, int], list[Trial]] = {}
    for trial in trials:
        rounds.setdefault((trial.seed, trial.repeat), []).append(trial)
    size = max(map(len, rounds.values()))
    prefix: list[Trial] = []
    for some in rounds.values():
        if not all(t in a.episodes and t in b.episodes for t in some):
            break
        sound = all(each in _JUDGED for t in some for each in _outcomes(a, b, t))
        prefix += some if sound and len(some) == size else []
    return PairedSequentialTest(pairs_per_round=size).run(_won(a, prefix), _won(b, prefix))


def _outcomes(a: Side, b: Side, trial: Trial) -> tuple[Outcome, Outcome]:
    return a.episodes[trial].outcome, b.episodes[trial].outcome


def _won(side: Side, trials: Sequence[Trial]) -> list[float]:
    return [float(side.episodes[trial].outcome is Outcome.SUCCESS) for trial in trials]


def _gave(side: Side, trials: Sequence[Trial]) -> list[float]:
    return [side.episodes[trial].total_reward for trial in trials]


def _trials(count: int) -> str:
    return "1 trial is" if count == 1 else f"{count:,} trials are"


def _row(name: str, kind: Any, found: Difference, shown: Any) -> TableRow:
    return TableRow(
        name=name,
        kind=kind,
        cells=(
            f"{found.n:,}",
            shown(found.a),
            shown(found.b),
            signed(found.value, percents=shown is percent),
            bounds_text(found, percents=shown is percent),
            UNDEFINED if found.p_value is None else f"{found.p_value:.2g}",
        ),
    )


def signed(value: float | None, *, percents: bool) -> str:
    """A difference with its sign; that of rates is in percentage points."""
    if value is None:
        return UNDEFINED
    text = f"{100 * abs(value):.1f}" if percents else number(abs(value))
    return f"{'-' if value < 0 else '+'}{text}" if value else text


def bounds_text(found: Difference, *, percents: bool) -> str:
    """The interval of a difference as text, such as `[-3.1, +8.4]`."""
    if found.interval is None:
        return UNDEFINED
    low, high = found.interval.low, found.interval.high
    return f"[{signed(low, percents=percents)}, {signed(high, percents=percents)}]"


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "run": str(side.folder),
        "policy": side.policy,
        "planned": len(side.trials),
        "ended": len(side.episodes),
        "errors": side.errors,
        "complete": side.complete,
        "exactness": side.exactness,
        "checks": dataclasses.asdict(side.claim.checks),
    }


def _difference_json(found: Difference) -> dict[str, Any]:
    return {
        **({} if found.task is None else {"task": found.task}),
        "n": found.n,
        "a": found.a,
        "b": found.b,
        "difference": found.value,
        "interval": bounds(found.interval),
        "p": found.p_value,
        "test": found.test,
    }
