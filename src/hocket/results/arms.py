"""Many runs in one table: how each did, how its robot moved and, where they have a base, the
difference to it on the same trials."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.core.data import Array, Outcome
from hocket.errors import HocketError, RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import load_steps
from hocket.results import stats
from hocket.results.comparing.compare import RunComparison, compare_runs, difference_cells
from hocket.results.comparing.side import Side
from hocket.results.page.compare_page import jobs_page
from hocket.results.report import Report
from hocket.results.scores import Score
from hocket.results.tables import ResultTable, TableRow, interval_text, number, percent
from hocket.system.durable import write_atomic
from hocket.system.json_file import write_json

if TYPE_CHECKING:
    import pyarrow as pa

_MOTION = ("age\n(steps)", "jump", "within\nchunks", "jerk", "robot s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One of many runs: its report, or why there is none, and what it shows beside the base."""

    name: str
    folder: str
    """The name of its folder."""
    report: Report | None = None
    error: str | None = None
    """Why there is no report; None also where the run was not begun."""
    found: RunComparison | None = None
    """This run (a) against the base (b); None for the base, and where there is no pair."""
    note: str = ""
    """Why it cannot be paired with the base."""
    robot_s: stats.Mean = dataclasses.field(default_factory=lambda: stats.mean([]))
    """Seconds of robot time until success, of the episodes that succeeded. Undefined where the
    env's control rate is not known."""
    motion: Motion | None = None
    """How the robot moved; None where the world waited or steps were not recorded."""

    @property
    def delay(self) -> str:
        """How long the world went on while the policy thought."""
        return str(self.report.config.get("delay", 0)) if self.report is not None else "0"

    @property
    def is_worse(self) -> bool:
        """True where it succeeds less often than the base, at p < 0.05."""
        overall = None if self.found is None else self.found.comparison.overall
        if overall is None or overall.value is None or overall.p_value is None:
            return False
        return overall.value < 0 and overall.p_value < 1 - stats.LEVEL

    def read(self, folder: Path, base: Side | None) -> Arm:
        """Add what the run's folder, below `folder`, says of it and of its pairs with the base."""
        if self.report is None:
            return self
        own = Side.open(folder / self.folder)
        found, note = None, ""
        if base is not None and own.folder != base.folder:
            try:
                found = compare_runs(own, base)
            except HocketError as error:
                note = str(error)
        if self.report.config.get("method", "pause") == "pause":
            return dataclasses.replace(self, found=found, note=note)
        return dataclasses.replace(
            self,
            found=found,
            note=note,
            robot_s=_robot_s(own.folder, self.report),
            motion=_motion(own.folder),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "folder": self.folder,
            "report": None if self.report is None else self.report.to_json(listed=False),
            "error": self.error,
            "difference": None if self.found is None else self.found.to_json(),
            "not_paired": self.note or None,
            "robot_s": dataclasses.asdict(self.robot_s),
            "motion": None if self.motion is None else dataclasses.asdict(self.motion),
        }


_FORMAT = 1
"""The number of the format of `jobs.json`, which hocket writes and never reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTable:
    """Runs side by side."""

    arms: tuple[Arm, ...]
    base: str | None = None
    """The name of the run that all others are paired with."""

    @classmethod
    def open(cls, folder: Path, arms: Sequence[Arm], base: str | None) -> ArmTable:
        """The table of runs that lie in `folder`, each in a folder of its own."""
        of = next((arm for arm in arms if arm.name == base and arm.report is not None), None)
        side = None if of is None else Side.open(folder / of.folder)
        return cls(arms=tuple(arm.read(folder, side) for arm in arms), base=base)

    @property
    def tolerated(self) -> str | None:
        """The largest delay up to which none lost significantly; None where nothing can be said:
        without pairs that differ in delay alone, or where the first of them lost already."""
        found = None
        for arm in self._delayed:
            if arm.is_worse:
                break
            found = arm.delay
        return found

    @property
    def sentence(self) -> str:
        """What the differences mean."""
        if self.base is None:
            return ""
        base = next(arm for arm in self.arms if arm.name == self.base)
        if base.report is None:
            return f"Nothing is compared: there is no report of {self.base}."
        paired = [arm.found.comparison for arm in self.arms if arm.found is not None]
        if not paired:
            return f"Nothing is compared with {self.base}: no other run has a report."
        n = min(each.overall.n for each in paired)
        told = (
            f"Differences to {self.base} on the same trials ({paired[0].overall.test}, n = {n:,} "
            "pairs or more); the p are not corrected for their number."
        )
        if not self._delayed:
            return told
        if self.tolerated is None:
            return f"{told} A delay of {self._delayed[0].delay} loses significantly already."
        return f"{told} The largest delay without a significant loss is {self.tolerated}."

    @property
    def failed(self) -> list[tuple[str, str]]:
        """The runs that have no report, or no pair with the base, and why."""
        return [(arm.name, arm.error or arm.note) for arm in self.arms if arm.error or arm.note]

    def table(self) -> ResultTable:
        """A line for each run that has a report."""
        arms = [arm for arm in self.arms if arm.report is not None]
        columns = ["run", "n", "success", "95 % interval", "errors"]
        returns = any(arm.report.overall.finished for arm in arms if arm.report is not None)
        if returns:
            columns[2] = "success\nor return"
        has_base = any(arm.found is not None for arm in arms)
        moved = any(arm.motion is not None for arm in arms)
        columns += ["difference", "95 % interval", "p"] * has_base
        columns += _MOTION * moved
        rows = []
        for arm in arms:
            assert arm.report is not None
            cells = _score_cells(arm.report.overall)
            if arm.found is not None:
                found = arm.found.comparison
                cells += difference_cells(found.overall, percents=found.of == "success")
            elif has_base:
                cells += ("", "", "")
            rows.append(TableRow(name=arm.name, cells=cells + _motion_cells(arm) * moved))
        return ResultTable(columns=tuple(columns), rows=tuple(rows), footer=self.sentence)

    def to_json(self) -> dict[str, Any]:
        """The table as plain values, with every run's report."""
        return {
            "format": _FORMAT,
            "base": self.base,
            "sentence": self.sentence,
            "tolerated_delay": self.tolerated,
            "runs": [arm.to_json() for arm in self.arms],
        }

    def save(self, folder: Path) -> None:
        """Write `jobs.json` and `jobs.html` into the folder that holds the runs' folders."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "jobs.json", self.to_json())
        write_atomic(folder / "jobs.html", jobs_page(folder.name, self).encode())

    @property
    def _delayed(self) -> list[Arm]:
        """The runs that differ from the base in delay, and were disturbed as it was."""
        base = next((arm for arm in self.arms if arm.name == self.base), None)
        if base is None or base.report is None:
            return []
        disturbed = base.report.config.get("perturb")
        return [
            arm
            for arm in self.arms
            if arm.found is not None
            and arm.report is not None
            and arm.delay != base.delay
            and arm.report.config.get("perturb") == disturbed
        ]


def _robot_s(folder: Path, report: Report) -> stats.Mean:
    with LedgerView.open(RunFolder.at(folder)) as ledger:
        rates = {task: spec.task.control_rate for task, spec in ledger.specs().items()}
    return stats.mean(
        [
            episode.steps / rate
            for episode in report.episodes
            if episode.outcome is Outcome.SUCCESS
            and (rate := rates.get((episode.trial.suite, episode.trial.task)))
        ]
    )


def _motion(folder: Path) -> Motion | None:
    try:
        return motion_of(load_steps(folder))
    except RunFolderError:
        return None


def _score_cells(score: Score) -> tuple[str, ...]:
    is_return = score.success.n == 0 and score.finished > 0
    interval = score.returns.interval if is_return else score.success.interval
    shown = interval_text(interval, percents=not is_return)
    value = number(score.returns.value) if is_return else percent(score.rate)
    return (f"{score.success.n or score.n:,}", value, shown, f"{score.errors:,}")


def _motion_cells(arm: Arm) -> tuple[str, ...]:
    motion = arm.motion
    if motion is None:
        return ("", "", "", "", number(arm.robot_s.value))
    values = (motion.age, motion.jump, motion.change, motion.jerk, arm.robot_s.value)
    return tuple(number(value) for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """What the executed actions of a run's episodes were like; None where there were none."""

    steps: int
    """Executed actions, those of holding still left out."""
    held: int
    """Steps in which the robot held still."""
    age: float | None
    """Mean age of the observation behind an action, in control steps."""
    oldest: int | None
    """The greatest age."""
    jump: float | None
    """Mean distance from the last action of a chunk to the first of the next, in the units of
    actions."""
    borders: int
    """How many of those there were."""
    change: float | None
    """Mean distance between consecutive actions inside of a chunk: what a jump compares with."""
    jerk: float | None
    """Mean size of the third difference of the actions, per step cubed."""


def motion_of(steps: pa.Table) -> Motion:
    """Measure the table `steps` of a run."""
    table = steps.select(["trial", "step", "chunk", "age", "action"])
    done = table.filter(np.asarray(table["step"]) > 0)
    chunk, age = np.asarray(done["chunk"]), np.asarray(done["age"])
    trial = np.asarray(done["trial"].combine_chunks().dictionary_encode().indices)
    sizes = np.asarray(done["action"].combine_chunks().value_lengths())
    jumps: list[Array] = []
    changes: list[Array] = []
    jerks: list[Array] = []
    flat = np.asarray(done["action"].combine_chunks().flatten(), np.float64)
    begins = np.concatenate([[0], np.cumsum(sizes)])
    starts = np.flatnonzero(np.diff(trial, prepend=-1, append=-1))
    for first, last in itertools.pairwise(starts.tolist()):
        actions = flat[begins[first] : begins[last]].reshape(last - first, -1)
        moved = np.linalg.norm(np.diff(actions, axis=0), axis=1)
        is_border = np.diff(chunk[first:last]) != 0
        jumps.append(moved[is_border])
        changes.append(moved[~is_border])
        jerks.append(np.linalg.norm(np.diff(actions, n=3, axis=0), axis=1))
    is_held = chunk < 0
    ages = age[~is_held]
    return Motion(
        steps=int((~is_held).sum()),
        held=int(is_held.sum()),
        age=_mean_of([ages]),
        oldest=int(ages.max()) if len(ages) else None,
        jump=_mean_of(jumps),
        borders=sum(map(len, jumps)),
        change=_mean_of(changes),
        jerk=_mean_of(jerks),
    )


def _mean_of(parts: list[Array]) -> float | None:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return float(values.mean()) if len(values) else None
