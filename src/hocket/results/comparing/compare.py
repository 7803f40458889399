"""Two runs on the same trials: are they comparable, and which one is better?

Trials of the same name are the same trial only where the settings that make it are the same; runs
that differ there are refused. Whatever differs beyond that (policy, replanning, lanes ...) is what
the comparison is about, and is listed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hocket.core.data import Array, Outcome, Trial
from hocket.errors import UsageError
from hocket.records.ledger.episodes import OUTCOMES, Trials, common_rows
from hocket.results.comparing.config_diff import (
    setting_differences,
    trial_differences,
    version_differences,
)
from hocket.results.comparing.paired import (
    CLAIMS,
    Comparison,
    Difference,
    Pairs,
    TasksAs,
    Verdict,
    compare,
)
from hocket.results.comparing.sequential import Decision
from hocket.results.comparing.side import Side, decide
from hocket.results.scores import bounds
from hocket.results.tables import UNDEFINED, ResultTable, TableRow, number, percent, signed

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
    trials: Trials
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
            f"{letter} is unfinished: {len(side.ended):,} of {len(side.trials):,} trials have "
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
        footer = f"Compared: {claim}. Interval and p: {found.overall.test} overall."
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
    rows_a, rows_b = common_rows(a.trials, b.trials)
    _refuse_different_trials(a, b, len(rows_a), common=common)
    trials = a.trials.taken(rows_a)
    ours, theirs = a.of_plan("outcome", -1)[rows_a], b.of_plan("outcome", -1)[rows_b]
    names = list(_names_of_kinds(trials).values())
    # Tasks stand in planned order, also where the first trial of one makes no pair.
    _, first, kind = np.unique(trials.kind, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))[kind]

    def rows(*outcomes: Outcome) -> Array:
        """Those that ended so on both sides, by task."""
        codes = [OUTCOMES.index(outcome) for outcome in outcomes]
        found = np.flatnonzero(np.isin(ours, codes) & np.isin(theirs, codes))
        return found[np.argsort(rank[found], kind="stable")]

    def won(some: Array) -> tuple[Array, Array]:
        code = OUTCOMES.index(Outcome.SUCCESS)
        return (ours[some] == code) * 1.0, (theirs[some] == code) * 1.0

    def about(some: Array) -> dict[str, Any]:
        return {
            "tasks": [names[kind] for kind in trials.kind[some].tolist()],
            "seeds": trials.seed[some],
            "independent": a.independent_starts and b.independent_starts,
            "tasks_as": tasks_as,
        }

    ended, sound = len(rows(*Outcome)), len(rows(*_JUDGED, Outcome.FINISHED))
    judged, finished = rows(*_JUDGED), rows(Outcome.FINISHED)
    is_judged, pairs = len(judged) > 0, None
    paired = judged if is_judged else finished
    if is_judged or not len(finished):
        found = compare("success", *won(judged), **about(judged))
        pairs = Pairs.of(*won(judged))
    else:
        gave = (a.of_plan("total_reward", 0.0)[rows_a], b.of_plan("total_reward", 0.0)[rows_b])
        found = compare("return", gave[0][finished], gave[1][finished], **about(finished))
    excluded = Excluded(
        errors=ended - sound, pending=len(trials) - ended, unlike=sound - len(paired)
    )
    is_stopped = is_judged and (a.stops_when_decided or b.stops_when_decided)
    decision = failed = None
    if is_judged and (is_stopped or not (a.complete and b.complete)):
        decision = decide(a, b, trials, ours, theirs)
    if is_stopped and decision is not None:
        found = _after_stopping(found, decision)
    elif is_judged and excluded.errors:
        told = rows(*_COUNTED)
        failed = compare("success", *won(told), **about(told))
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


def task_names(trials: Trials) -> dict[Trial, str]:
    """The task of each trial, with its suite where there are several."""
    names = _names_of_kinds(trials)
    return {trial: names[trial[:2]] for trial in trials}


def _names_of_kinds(trials: Trials) -> dict[tuple[str, str], str]:
    several = len({trials.kinds[kind][0] for kind in np.unique(trials.kind)}) > 1
    return {kind: " / ".join(kind) if several else kind[1] for kind in trials.kinds}


def _refuse_different_trials(a: Side, b: Side, shared: int, *, common: bool) -> None:
    settings = setting_differences(a.config, b.config)
    if settings:
        raise UsageError(
            "These runs cannot be paired: trials of the same name are different trials, since "
            f"{'; '.join(settings)}. Run one of them again with the settings of the other."
        )
    if not shared:
        raise UsageError(
            "These runs have no trial in common: "
            f"{'; '.join(trial_differences(a.trials, b.trials))}."
        )
    if common or shared == len(a.trials) == len(b.trials):
        return
    if planned := trial_differences(a.trials, b.trials):
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


def _trials(count: int) -> str:
    return "1 trial is" if count == 1 else f"{count:,} trials are"


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
        "ended": len(side.ended),
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
