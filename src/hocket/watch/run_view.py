"""What a page knows of one run: a snapshot with a revision, and what has changed since then.

A view is looked at by one thread at a time. `poll` reads the run's folder and returns what changed;
pages that fell behind get the snapshot again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hocket.core.data import Trial
from hocket.errors import HocketError, RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.labels import add_label, labels_file, load_labels
from hocket.records.ledger.view import LedgerView
from hocket.records.run_file import load_run
from hocket.results.page.episodes import plan_json
from hocket.results.page.faults import headline, told_of
from hocket.results.page.look import looks_into
from hocket.results.page.report_page import report_data
from hocket.results.showing.live import is_alive, read_status
from hocket.system.durable import TEMPORARY
from hocket.watch.cells import LOST, Cells, EndedCell, find_twin, plain_rate
from hocket.watch.training import Curves
from hocket.workers.sinks.encoder import exact_rate

_FEED = 40
"""Failures and errors that a page lists."""
_SEARCHED = 400
"""Those that ended last of which it lists them: the filmed ones first."""
_OF_STATUS = (
    "phase",
    "began",
    "at",
    "left_s",
    "filmed",
    "lost_attempts",
    "lane_count",
    "cores",
    "speed",
    "batch_sizes",
    "notes",
)
"""What a page's head shows of a run's own status."""


class RunView:
    """A run of which a page is shown. Closing twice is safe."""

    poll_s = 0.5

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._cells: Cells | None = None
        self._twin: tuple[str, Cells] | None = None
        self._curves = Curves(folder)
        self._head: dict[str, Any] = {}
        self._lanes: list[dict[str, Any]] = []
        self._feed: list[dict[str, Any]] = []
        self._labels: dict[str, str] = {}
        self._labels_at: tuple[int, int] | None = None
        self._lost: object = None
        """How many attempts were lost when the ledger was last asked which."""

    def close(self) -> None:
        for cells in (self._cells, self._twin[1] if self._twin else None):
            if cells is not None:
                cells.close()
        self._cells, self._twin = None, None

    @property
    def is_alive(self) -> bool:
        """True if the run went on when its folder was last read."""
        return bool(self._head.get("alive"))

    # -- what is told --------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """All that a page needs to begin with."""
        cells = self._cells
        found: dict[str, Any] = {
            "kind": "snapshot",
            "name": self.name,
            "title": self._title(),
            "head": self._head,
            "lanes": self._lanes,
            "feed": list(self._feed),
            "curves": self._curves.all(),
            "labels": self._labels_by_cell(),
        }
        if cells is not None:
            found |= {
                "plan": plan_json(cells.plan),
                "outcomes": cells.outcomes.decode(),
                "rates": _rates(cells, range(len(cells.counts))),
            }
        return found

    def poll(self) -> dict[str, Any] | None:
        """Read the folder again; what has changed since the last time, None where nothing has.
        `again` says that pages need a new snapshot."""
        change: dict[str, Any] = {}
        is_new = self._cells is None and RunFolder.at(self.folder).ledger.exists()
        if is_new:
            self._cells = Cells(self.folder)
        cells = self._cells
        if cells is not None:
            planned, ended = len(cells.plan), cells.update()
            if is_new:
                self._begin_feed(cells)
                self._twin = find_twin(self.folder, cells)
            elif ended:
                change |= self._tell_ended(cells, ended)
            if is_new or len(cells.plan) != planned:
                change["again"] = True
        if new := self._curves.update():
            change["curves"] = new
        status = read_status(self.folder)
        before, self._head = self._head, self._make_head(status)
        change |= {} if self._head == before else {"head": self._head}
        is_lost = cells is not None and self._head["lost_attempts"] != self._lost
        if cells is not None and is_lost and (lost := self._add_lost(cells)):
            self._lost = self._head["lost_attempts"]
            change["feed"] = [*change.get("feed", ()), *lost]
        were, self._lanes = self._lanes, self._make_lanes(status)
        change |= {} if self._lanes == were else {"lanes": self._lanes}
        if self._read_labels():
            change["labels"] = self._labels_by_cell()
        if fresh := self._look_for_films():
            change["feed"] = [*change.get("feed", ()), *fresh]
        return {"kind": "change", **change} if change else None

    def episode(self, cell: int, attempt: int | None = None) -> dict[str, Any]:
        """What is known of one trial, or of an attempt at it that was lost, for who looks at it."""
        cells = self._need(cell)
        trial, ended, lost = cells.plan[cell], cells.episode(cell), cells.lost_at(cell)
        last = ended.attempt if ended is not None else max(0, cells.attempts(cell) - 1)
        tries = {**dict.fromkeys(lost, LOST), last: "." if ended is None else ended.outcome}
        is_lost = attempt is not None and attempt != last and attempt in lost
        number = attempt if is_lost and attempt is not None else last
        found: dict[str, Any] = {
            "cell": cell,
            "trial": trial.id,
            "attempt": number,
            "attempts": sorted(tries.items()),
            "outcome": tries[number],
            "films": list(self._films(cell, number)),
            "growing": list(self._films(cell, number, grows=True)) if tries[number] == "." else [],
            "label": self._labels.get(trial.id, ""),
            "rate": self._control_rate(trial),
        }
        if is_lost:
            return {**found, **told_of(lost[number])}
        lane = next((one for one in self._lanes if one.get("cell") == cell), None)
        if ended is not None:
            found |= {
                "steps": ended.steps,
                "seconds": ended.seconds,
                "reward": ended.total_reward,
                **told_of(ended.error or ""),
            }
        elif lane is not None:
            found |= {"lane": lane["lane"], "borders": lane.get("borders", [])}
        return found

    def inside(self, cell: int, attempt: int) -> dict[str, Any]:
        """What is inside of an attempt that has ended: nothing where it left no steps."""
        trial = self._need(cell).plan[cell]
        found = dict(looks_into(self.folder, [(trial, attempt)]))
        return found.get((trial, attempt), {})

    def report(self) -> dict[str, Any]:
        """What the report of a run has that has ended, for a page that is served."""
        return report_data(self.folder)

    def label(self, cell: int, text: str) -> None:
        """Keep a label of a trial's episode; no words take it away."""
        cells = self._need(cell)
        trial, ended = cells.plan[cell], cells.episode(cell)
        if ended is None:
            raise RunFolderError(f"{trial.id} has not ended: nothing to label yet.")
        add_label(self.folder, trial, ended.attempt, text)

    # -- films ---------------------------------------------------------------------------------

    def film(self, cell: int, attempt: int, name: str, *, grows: bool = False) -> Path | None:
        """A video's file, or the one that it grows in; None where there is none of that name. No
        name leads out of the folder, nor does a link."""
        path = self._films(cell, attempt, grows=grows).get(name)
        if path is None or not path.resolve().is_relative_to(self.folder.resolve()):
            return None
        return path if path.is_file() else None

    def _films(self, cell: int, attempt: int, *, grows: bool = False) -> dict[str, Path]:
        """An attempt's sealed videos by name; or those that are still being written, by the name
        that each will have."""
        trial = self._need(cell).plan[cell]
        folder = RunFolder.at(self.folder).attempt(trial, attempt)
        paths = sorted(folder.glob(f".*.mp4{TEMPORARY}" if grows else "[!.]*.mp4"))
        return {path.name.removeprefix(".").removesuffix(TEMPORARY): path for path in paths}

    # -- what the folder says ------------------------------------------------------------------

    def _need(self, cell: int) -> Cells:
        if self._cells is None or not 0 <= cell < len(self._cells.plan):
            raise RunFolderError(f"There is no trial {cell} in {self.name}.")
        return self._cells

    def _title(self) -> str:
        try:
            config = load_run(self.folder)
        except HocketError:
            return self.name
        env = config.get("env") or ()
        names = [env] if isinstance(env, str) else [str(one) for one in env]
        return f"{config.get('policy', 'policy')} on {', '.join(names)}"

    def _make_head(self, status: Mapping[str, Any] | None) -> dict[str, Any]:
        alive = is_alive(status, time.time())
        head: dict[str, Any] = {key: (status or {}).get(key) for key in _OF_STATUS}
        head |= {"alive": alive, "training": self._curves.about()}
        if alive and head["phase"] == "done":
            head["phase"] = "writing the report"
        if (training := head["training"]) and not alive:
            is_done = training["env_steps"] >= training["steps"]
            head["phase"] = "done" if is_done else "stopped"
        if self._cells is None:
            return head
        cells = self._cells
        counts: Counter[str] = sum(cells.counts, Counter())
        done, planned = sum(counts.values()), len(cells.plan)
        head |= {"planned": planned, "done": done, "counts": dict(counts)}
        head["rate"] = plain_rate(cells.rate())
        if not alive:
            head["phase"] = "done" if done == planned else "stopped"
        if self._twin is not None:
            found = cells.compared(self._twin[1])
            head["twin"] = None if found is None else {"name": self._twin[0], **found}
        return head

    def _make_lanes(self, status: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        if status is None or not self.is_alive:
            return []
        lanes = [dict(lane) for lane in status.get("lanes", ())]
        for lane in lanes:
            if self._cells is not None and "trial" in lane:
                lane["cell"] = self._cells.plan.find(lane["trial"])
        return lanes

    def _begin_feed(self, cells: Cells) -> None:
        self._add(self._item(cells, one) for one in cells.last_failed(_SEARCHED))
        self._add_lost(cells)

    def _add(self, items: Iterable[dict[str, Any]]) -> None:
        """List failures that came; of too many the oldest go that have no film."""
        self._feed.extend(items)
        while (over := len(self._feed) - _FEED) > 0:
            bare = [i for i, item in enumerate(self._feed) if not item["films"]][:over]
            for i in reversed(bare or range(over)):
                del self._feed[i]

    def _tell_ended(self, cells: Cells, ended: list[EndedCell]) -> dict[str, Any]:
        letters: dict[str, list[int]] = {}
        for one in ended:
            letters.setdefault(one.outcome, []).append(one.cell)
        items = [self._item(cells, one) for one in ended if one.outcome in "FE"][-_FEED:]
        self._add(items)
        tasks = {int(cells.plan.kind[one.cell]) for one in ended}
        return {
            "cells": letters,
            "rates": _rates(cells, tasks),
            "feed": items,
        }

    def _item(self, cells: Cells, ended: EndedCell) -> dict[str, Any]:
        return {
            "cell": ended.cell,
            "attempt": ended.attempt,
            "outcome": ended.outcome,
            "trial": cells.plan[ended.cell].id,
            "steps": ended.steps,
            "error": headline(ended.error or "")[:300],
            "films": list(self._films(ended.cell, ended.attempt)),
        }

    def _add_lost(self, cells: Cells) -> list[dict[str, Any]]:
        """Put attempts that were lost into the feed; the items that are new."""
        known = {(item["cell"], item["attempt"]) for item in self._feed}
        lost = [one for one in cells.lost(_FEED) if (one.cell, one.attempt) not in known]
        new = [self._item(cells, one) for one in lost]
        self._add(new)
        return new

    def _look_for_films(self) -> list[dict[str, Any]]:
        """Items of the feed whose videos came since they were told."""
        found = []
        for item in self._feed:
            films = list(self._films(item["cell"], item["attempt"]))
            if films != item["films"]:
                item["films"] = films
                found.append(item)
        return found

    def _read_labels(self) -> bool:
        try:
            stat = labels_file(self.folder).stat()
            at = (stat.st_mtime_ns, stat.st_size)
        except OSError:
            at = None
        if at == self._labels_at:
            return False
        self._labels_at = at
        self._labels = load_labels(self.folder)
        return True

    def _labels_by_cell(self) -> dict[int, str]:
        if self._cells is None:
            return {}
        cells = {trial: self._cells.plan.find(trial) for trial in self._labels}
        return {cell: self._labels[trial] for trial, cell in cells.items() if cell is not None}

    def _control_rate(self, trial: Trial) -> float:
        """Frames a second of a video that is written while the episode runs."""
        with LedgerView.open(self.folder) as ledger:
            spec = ledger.specs().get((trial.suite, trial.task))
        return float(exact_rate(None if spec is None else spec.task.control_rate))


def _rates(cells: Cells, tasks: Iterable[int]) -> dict[int, dict[str, Any]]:
    return {task: plain_rate(cells.task_rate(task)) for task in tasks}
