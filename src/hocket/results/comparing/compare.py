"""Two runs on the same trials: are they comparable, and which one is better?

Trials of the same name are the same trial only where the settings that make it are the same; runs
that differ there are refused. Whatever differs beyond that (policy, replanning, lanes ...) is what
the comparison is about, and is listed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hocket.core.data import Outcome, Trial
from hocket.errors import UsageError
from hocket.results.comparing.config_diff import (
    setting_differences,
    trial_differences,
    version_differences,
)
from hocket.results.comparing.decision import Decision
from hocket.results.comparing.paired import (
    CLAIMS,
    Comparison,
    Difference,
    Pairs,
    TasksAs,
    Verdict,
    compare_rates,
    compare_returns,
)
from hocket.results.comparing.side import Side, decide
from hocket.results.scores import bounds
from hocket.results.tables import UNDEFINED, ResultTable, TableRow, number, percent

_JUDGED = (Outcome.SUCCESS, Outcome.FAILURE)
_COUNTED = (*_JUDGED, Outcome.ERROR)


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
    errors_failed: Comparison | None
    """The comparison with every error counted as a failure; None where there are no errors, or
    where `decision` says it."""
    decision: Decision | None
    """For runs that go on, or stopped when it was decided: what the sequential test says."""
    is_stopped: bool
    """True if a run was to stop when it was decided: an ordinary test does not allow for that."""

    @property
    def verdict(self) -> Verdict:
        if self.is_stopped and self.decision is not None:
            return self.decision.look.decision
        return self.comparison.verdict

    @property
    def sentence(self) -> str:
        if self.is_stopped and self.decision is not None:
            return self.decision.told("a", "b")
        return self.comparison.sentence

    @property
    def notes(self) -> list[str]:
        """What whoever reads the numbers must know, too, in sentences."""
        a, b, trials = self.a, self.b, self.trials
        notes = [
            f"{letter} is unfinished: {len(side.episodes):,} of {len(side.trials):,} trials have "
            "ended. Those that end early are no fair sample; resume it before you quote a "
            "difference."
            for letter, side in (("a", a), ("b", b))
            if not side.complete
        ]
        if len(trials) < max(len(a.trials), len(b.trials)):
            notes.append(
                f"Only the {len(trials):,} trials that both planned are compared "
                f"(a planned {len(a.trials):,}, b {len(b.trials):,})."
            )
        notes += _error_notes(self)
        if self.excluded.unlike:
            left_out = _trials(self.excluded.unlike)
            notes.append(f"{left_out} left out: no success is told on both sides.")
        if a.claim == b.claim:
            notes.append(f"Exactness of both is {a.exactness}. {a.claim.sentence}")
        else:
            notes += [
                f"Exactness of {letter} is {side.exactness}. {side.claim.sentence}"
                for letter, side in (("a", a), ("b", b))
            ]
        if versions := version_differences(a.versions, b.versions):
            notes.append(f"Made with different versions: {'; '.join(versions)}.")
        return notes + _sequential_notes(self)

    def results(self) -> ResultTable:
        found = self.comparison
        rates = found.of == "success"
        shown = percent if rates else number

        def row(name: str, kind: Literal["item", "total"], each: Difference) -> TableRow:
            cells = (f"{each.n:,}", shown(each.a), shown(each.b))
            return TableRow(
                name=name, kind=kind, cells=(*cells, *difference_cells(each, percents=rates))
            )

        rows = [row(task.task or "", "item", task) for task in found.tasks]
        rows.append(row("overall", "total", found.overall))
        columns = ("task", "n", "a", "b", "a - b", "95 % interval", "p")
        claim = f"{found.of}, a claim {CLAIMS[found.tasks_as]}"
        footer = f"Compared: {claim}. p: {found.overall.test} overall."
        if len(found.tasks) > 1 and any(task.p_value is not None for task in found.tasks):
            footer += " The p of single tasks are not corrected for their number."
        return ResultTable(columns=columns, rows=tuple(rows), footer=footer)

    def to_json(self) -> dict[str, Any]:
        """Values that JSON has; None where one is undefined."""
        found, failed = self.comparison, self.errors_failed
        return {
            "a": _side_json(self.a),
            "b": _side_json(self.b),
            "of": found.of,
            "tasks_as": found.tasks_as,
            "claim": CLAIMS[found.tasks_as],
            "verdict": self.verdict,
            "sentence": self.sentence,
            "overall": _difference_json(found.overall),
            "tasks": [_difference_json(task) for task in found.tasks],
            "pairs_needed" if found.tasks_as == "strata" else "tasks_needed": found.needed,
            "bootstrap_interval": bounds(found.bootstrap),
            "pairs": None if self.pairs is None else dataclasses.asdict(self.pairs),
            "excluded": dataclasses.asdict(self.excluded),
            "errors_as_failures": None
            if failed is None
            else {**_difference_json(failed.overall), "verdict": failed.verdict},
            "sequential": None if self.decision is None else self.decision.to_json(),
            "notes": self.notes,
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
    is_stopped = bool(judged) and (a.stops_when_decided or b.stops_when_decided)
    decision = failed = None
    if judged and (is_stopped or not (a.complete and b.complete)):
        decision = decide(a, b, trials)
    if is_stopped and decision is not None:
        found = _after_stopping(found, decision)
    elif judged and excluded.errors:
        told = [t for t in ended if all(o in _COUNTED for o in _outcomes(a, b, t))]
        names_told = [names[trial] for trial in told]
        failed = compare_rates(_won(a, told), _won(b, told), names_told, tasks_as=tasks_as)
    return RunComparison(
        a=a,
        b=b,
        trials=trials,
        comparison=found,
        pairs=pairs,
        excluded=excluded,
        errors_failed=failed,
        decision=decision,
        is_stopped=is_stopped,
    )


def _after_stopping(found: Comparison, decision: Decision) -> Comparison:
    """The comparison of a run that stopped when it was decided: with the p and the interval that
    are valid then, and without those that are not."""
    is_claimed, none = found.tasks_as == "strata", "none is valid after a stop"
    overall = dataclasses.replace(
        found.overall,
        p_value=decision.look.p_value if is_claimed else None,
        interval=decision.interval if is_claimed else None,
        test=f"{decision.test}, valid at any look" if is_claimed else none,
    )
    tasks = tuple(dataclasses.replace(task, p_value=None, test=none) for task in found.tasks)
    return dataclasses.replace(found, overall=overall, tasks=tasks, needed=None)


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


def _error_notes(found: RunComparison) -> list[str]:
    """How many pairs are lost to errors, and whether the verdict rests on leaving them out: where
    failures tend to crash, that flatters the side that crashes."""
    if not found.excluded.errors:
        return []
    a, b, failed = found.a, found.b, found.errors_failed
    text = (
        f"{_trials(found.excluded.errors)} left out: an error on one side at least "
        f"({a.errors:,} of a's trials are errors, {b.errors:,} of b's)."
    )
    if failed is not None and failed.overall.p_value is not None:
        stands = "the verdict stands" if failed.verdict == found.verdict else "the verdict changes"
        text += (
            f" With errors counted as failures {stands}: a - b is "
            f"{signed(failed.overall.value, percents=True)} points, {failed.verdict} "
            f"(p = {failed.overall.p_value:.2g})."
        )
    return [text]


def _sequential_notes(found: RunComparison) -> list[str]:
    decision = found.decision
    if decision is None:
        return []
    notes = [decision.errors_told("a", "b")]
    if found.is_stopped:
        stopped = " and ".join(
            letter for letter, side in (("a", found.a), ("b", found.b)) if side.stops_when_decided
        )
        notes.insert(
            0,
            f"{stopped} stopped when a comparison was decided. A difference found so is biased "
            "towards the decision; the p and the interval overall hold whenever one stops, those "
            "of single tasks do not allow for it.",
        )
    else:
        notes.insert(
            0,
            "A run that goes on is looked at more than once, which the p above does not allow for. "
            f"The sequential test does: {decision.told('a', 'b')}",
        )
    return [note for note in notes if note]


def _outcomes(a: Side, b: Side, trial: Trial) -> tuple[Outcome, Outcome]:
    return a.episodes[trial].outcome, b.episodes[trial].outcome


def _won(side: Side, trials: Sequence[Trial]) -> list[float]:
    return [float(side.episodes[trial].outcome is Outcome.SUCCESS) for trial in trials]


def _gave(side: Side, trials: Sequence[Trial]) -> list[float]:
    return [side.episodes[trial].total_reward for trial in trials]


def _trials(count: int) -> str:
    return "1 trial is" if count == 1 else f"{count:,} trials are"


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


def difference_cells(found: Difference, *, percents: bool) -> tuple[str, str, str]:
    """A difference, its interval and its p, as tables have them."""
    p = UNDEFINED if found.p_value is None else f"{found.p_value:.2g}"
    return signed(found.value, percents=percents), bounds_text(found, percents=percents), p


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
