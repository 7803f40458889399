"""What is recorded of each attempt, and which films are kept of those that are made while episodes
run, since nobody can film them once they have ended.

`few` films all of these and keeps what is wanted once an episode has ended; or, where that would
take too much, films those that are drawn by the hash of the trial.
"""

from __future__ import annotations

import bisect
import contextlib
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket.core.contracts.recorder import DRAWN, EVIDENCE, IMAGES, STREAM, VIDEO
from hocket.core.data import Episode, Outcome, Trial, noise_seed
from hocket.core.events import AttemptFailed, ChunksExecuted, Event, SpecLearned
from hocket.records.answers import Answers
from hocket.records.evidence import crash_kind, kept_evidence, salvage
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.schema import FILMS
from hocket.records.video.selection import FAILURES_OF_FEW, VideoSelection
from hocket.workers.sinks.encoder import UNTIMED_RATE
from hocket.workers.sinks.video import ANSWERS_FILE, is_drawn, is_rendered_later

Task = tuple[str, str]
"""Suite and task."""
_SHARE = 0.05
"""Share of the workers' time that the films of `few` may take."""
_EARLY = 10
"""Trials of a task, the first ones planned, of which one is filmed whatever it costs."""
_FREE_S = 10.0
"""Seconds of a run that the keeping of pictures may take that are there anyway, however short the
run is. What would have to be drawn has no such time."""
_NOTHING = (0.0, 0.0, 0.0)


class VideoPlan:
    """Says what is asked of the sinks in each attempt (the engine's `record` function) and which
    films are kept of those that were made while episodes ran. A reader too, that learns which tasks
    these are and what their films cost, for the user to be told."""

    def __init__(
        self,
        video: VideoSelection,
        planned: Sequence[Trial],
        *,
        images: bool,
        ledger: Ledger | None = None,
        room_mb: float = 0.0,
        errors: int = 0,
    ) -> None:
        """`planned` may grow while the run goes on; `room_mb` is what the films may have; of so
        many `errors` is kept what was recorded."""
        self._selection = video
        self._planned = planned
        self._counted = -1
        self._asked: dict[str, str] = {}
        self._order: dict[Trial, int] = {}
        self._lowest: dict[Task, float] = {}
        """The lot of the early trial of each task that is filmed whatever that costs: it tells what
        films cost."""
        self._planned_of: Counter[Task] = Counter()
        self._images = {IMAGES: "all"} if images else {}
        self.streams = False
        """Rows come without files: true where the engine is beside the ledger."""
        self._ledger = ledger
        self._in_line: dict[Task, bool] = {}
        """Tasks that are filmed while they run, and whether pictures are drawn for that."""
        self._later: dict[Task, dict[Outcome, list[int]]] = {}
        """Tasks that can be filmed once they have ended: by outcome the planned order of those that
        have."""
        self.answers = Answers(self._keeps_answers)
        self._untimed: set[str] = set()
        """Tasks whose env does not say its control rate."""
        self._running: dict[tuple[Trial, int], Mapping[str, Any]] = {}
        self._costs: dict[tuple[Task, bool], list[float]] = {}
        """Of each task, filmed or not: steps, seconds of workers, and of these for observing."""
        self._ended: Counter[Task] = Counter()
        self._kept: Counter[tuple[Task, bool]] = Counter()
        """Films of each task, by whether they show a failure."""
        self.counts = Counter(filmed=0, ended=0, lacked=0)
        """Episodes that were `filmed`, of those that `ended`; films that `lacked` room."""
        self._room_mb = room_mb
        self._room = room_mb * 1e6
        self._errors = errors
        self._asks_errors = video.kind == "few" and errors > 0
        """True if one film of each kind of crash is kept, however many errors there were."""
        self._crashes: set[tuple[Task, str]] = set()
        """The kinds that have a film."""
        if ledger is not None:
            ledger.unwanted = self.unwanted
            self.counts.update(ledger.meta().get(FILMS, {}))
            for episode in ledger.episodes():
                self._keep(episode, _films(episode))
            for each in kept_evidence(ledger):
                self._errors -= 1
                if films := [self._path(file) for file in each.files if file.endswith(".mp4")]:
                    self._takes(films)
                    self._crashes.add((each.trial[:2], crash_kind(each.error)))

    def __call__(self, trial: Trial, attempt: int) -> Mapping[str, Any]:
        if self._counted != len(self._planned):
            self._count_planned()
        record: dict[str, Any] = dict(self._images)
        if self.streams:
            record[STREAM] = True
        if self._errors > 0 or self._asks_errors:
            record[EVIDENCE] = True
        if trial.id not in self._asked:
            return record
        record[VIDEO] = self._asked[trial.id]
        if self._selection.kind == "few":
            record.update(self._few(trial))
        self._running[trial, attempt] = record
        return record

    def _count_planned(self) -> None:
        self._counted, self._asked = len(self._planned), self._selection.asked(self._planned)
        self._order = {trial: order for order, trial in enumerate(self._planned)}
        self._planned_of, self._lowest = Counter(), {}
        for trial in self._planned:
            self._planned_of[task := trial[:2]] += 1
            if self._planned_of[task] <= _EARLY:
                self._lowest[task] = min(_lot(trial), self._lowest.get(task, 1.0))

    def _few(self, trial: Trial) -> dict[str, Any]:
        """What `few` asks of a trial: to keep what is still wanted of its task."""
        task, lot = trial[:2], _lot(trial)
        is_lowest = lot == self._lowest[task]
        if not is_lowest and lot > self._share(task):
            return {VIDEO: "later"}
        others, failures = (self._wants(task, is_failure=kind) for kind in (False, True))
        wanted = ("any" if others else "failures") if failures else "others" if others else "errors"
        # Nobody knows before the first reset whether pictures would have to be drawn.
        return {VIDEO: wanted, DRAWN: is_lowest or task in self._in_line}

    def _wants(self, task: Task, *, is_failure: bool) -> bool:
        return self._kept[task, is_failure] < (FAILURES_OF_FEW if is_failure else 1)

    def _share(self, task: Task) -> float:
        """The share of a task's trials that can be filmed within what films may cost."""
        steps, busy_s, observed_s = self._costs.get((task, True), _NOTHING)
        is_drawn = self._in_line.get(task, False)
        if not steps or not self._ended[task]:
            return 0.0 if is_drawn else 1.0
        others, others_busy_s, others_observed_s = self._costs.get((task, False), _NOTHING)
        seen_s = others_observed_s / others if others else 0.0
        cost_s = max(observed_s / steps - seen_s, 1e-9)
        moved_s = busy_s - observed_s + others_busy_s - others_observed_s
        base_s = moved_s / (steps + others) + seen_s
        total = (steps + others) / self._ended[task] * self._planned_of[task]
        free_s = 0.0 if is_drawn else _FREE_S / len(self._planned_of)
        return float((base_s * _SHARE / (1 - _SHARE) + free_s / total) / cost_s)

    # -- the engine's reader -------------------------------------------------------------------

    @property
    def hears(self) -> Collection[type[Event]]:
        """Of chunks only once an env was learned of whose films cost something."""
        films = [*self.answers.hears] if self._in_line or self._later else []
        costs = [ChunksExecuted] if self._in_line else []
        return (SpecLearned, AttemptFailed, *films, *costs)

    def on(self, event: Event) -> None:
        if isinstance(event, SpecLearned) and event.spec.cameras and self._asked:
            spec, task = event.spec, (event.suite, event.spec.task.name)
            if is_rendered_later(spec.abilities):
                self._later[task] = {}
            else:
                self._in_line[task] = is_drawn(spec.abilities)
                if self._ledger is not None:
                    self._ledger.counts = self.counts
            if not spec.task.control_rate:
                self._untimed.add(spec.task.name)
        elif isinstance(event, ChunksExecuted):
            costs = (event.steps, event.busy, event.observed)
            rows = zip(event.trials, event.attempts, *costs, strict=True)
            for trial, attempt, steps, busy_s, observed_s in rows:
                if (task := trial[:2]) in self._in_line:
                    key = task, self._is_filmed(trial, attempt)
                    sums = self._costs.setdefault(key, [0.0, 0.0, 0.0])
                    sums[0] += steps
                    sums[1] += busy_s
                    sums[2] += observed_s
        else:
            if isinstance(event, AttemptFailed):
                self._keep_error(event)
            self.answers.on(event)

    def _keep_error(self, event: AttemptFailed) -> None:
        """Keep what an attempt that was lost recorded, while that is wanted, with what the policy
        answered to it."""
        if self._ledger is None:
            return
        folder = self._ledger.folder.attempt(event.trial, event.attempt)
        kind = (event.trial[:2], crash_kind(event.error))
        is_new = self._asks_errors and kind not in self._crashes
        is_kept = (self._errors > 0 or is_new) and folder.is_dir()
        if is_kept:
            self.answers.save(event.trial, event.attempt, folder)
        found = salvage(folder) if is_kept else []
        films = [path for path in found if path.suffix == ".mp4"]
        if films and (is_new or not self._asks_errors) and self._takes(films):
            self._crashes.add(kind)
        else:
            for film in films:
                film.unlink(missing_ok=True)
                found.remove(film)
            films = []
        if found and (self._errors > 0 or films):
            self._errors -= 1
        else:
            # Several lanes may fail at once, each asked for when there was room.
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()

    def close(self) -> None: ...

    @property
    def notes(self) -> list[str]:
        """The sentences for the user; none where there is nothing to tell."""
        notes = []
        if filmed := self.counts["filmed"]:
            tasks = ", ".join(sorted(task for _, task in self._in_line))
            observed_s = sum(sums[2] for (_, is_filmed), sums in self._costs.items() if is_filmed)
            took = f"; observing and keeping them took the workers {observed_s:.1f} s"
            notes.append(
                f"{filmed} episodes were filmed while they ran, since {tasks} cannot be shown "
                f"again from stored states, of {self.counts['ended']} that ended"
                f"{took if observed_s else ''}."
            )
        if lacked := self.counts["lacked"]:
            notes.append(f"{lacked} films were not kept: the run's {self._room_mb:g} MB are full.")
        if self._untimed:
            notes.append(
                f"{', '.join(sorted(self._untimed))} does not say how fast it is controlled "
                f"(`control_rate`, or metadata['render_fps']): its videos show {UNTIMED_RATE:g} "
                f"steps a second."
            )
        return notes

    def _is_filmed(self, trial: Trial, attempt: int) -> bool:
        """True if an attempt under way is filmed while it runs."""
        asked, is_drawn = self._running.get((trial, attempt), {}), self._in_line.get(trial[:2])
        is_asked = asked.get(VIDEO, "later") != "later"
        return is_asked and is_drawn is not None and (not is_drawn or asked.get(DRAWN, True))

    def _keeps_answers(self, trial: Trial, attempt: int) -> bool:
        """True if an attempt under way is filmed, or may be once it has ended."""
        if trial[:2] in self._later:
            return trial.id in self._asked
        return self._is_filmed(trial, attempt)

    # -- what is kept --------------------------------------------------------------------------

    def unwanted(self, episode: Episode) -> Collection[str]:
        """Delete the films of an episode that are not to be kept, and name them; beside others lies
        what the policy answered. To be called once for each, before it is committed."""
        unwanted = self._unwanted_films(episode)
        if self._may_be_filmed(episode) or (not unwanted and _films(episode)):
            assert self._ledger is not None
            folder = self._ledger.folder.attempt(episode.trial, episode.attempt)
            self.answers.save(episode.trial, episode.attempt, folder)
        self.answers.forget(episode.trial, episode.attempt)
        waste = [f for f in episode.files if unwanted and f.endswith(ANSWERS_FILE)]
        for file in (*unwanted, *waste):
            self._path(file).unlink(missing_ok=True)
        return (*unwanted, *waste)

    def _may_be_filmed(self, episode: Episode) -> bool:
        """True if an episode may be chosen once all have ended, of those that are filmed then."""
        outcome, ended = episode.outcome, self._later.get(episode.trial[:2])
        if ended is None or episode.trial.id not in self._asked:
            return False
        before = ended.setdefault(outcome, [])
        order = self._order[episode.trial]
        bisect.insort(before, order)
        return self._selection.chooses(outcome, bisect.bisect(before, order))

    def _unwanted_films(self, episode: Episode) -> Collection[str]:
        task, films = episode.trial[:2], _films(episode)
        if task in self._in_line:
            self._ended[task] += 1
            self.counts["ended"] += 1
            self.counts["filmed"] += self._is_filmed(episode.trial, episode.attempt)
        self._running.pop(episode[:2], None)
        is_few = self._selection.kind == "few"
        is_wanted = not is_few or self._wants(task, is_failure=_has_failed(episode))
        return () if not films or (is_wanted and self._keep(episode, films)) else films

    def _keep(self, episode: Episode, films: Sequence[str]) -> bool:
        """Count films as kept, where there is room."""
        is_kept = self._takes([*map(self._path, films)])
        self._kept[episode.trial[:2], _has_failed(episode)] += bool(films) and is_kept
        return is_kept

    def _takes(self, films: Sequence[Path]) -> bool:
        """Give films the room that they need; false where there is none, which is counted."""
        room = self._room - sum(path.stat().st_size for path in films)
        if room >= 0:
            self._room = room
        self.counts["lacked"] += room < 0
        return room >= 0

    def _path(self, file: str) -> Path:
        assert self._ledger is not None
        return self._ledger.folder.root / file


def _films(episode: Episode) -> list[str]:
    """The films that were sealed with an episode."""
    return [file for file in episode.files if file.endswith(".mp4")]


def _has_failed(episode: Episode) -> bool:
    return episode.outcome is Outcome.FAILURE


def _lot(trial: Trial) -> float:
    """A number in [0, 1) that is a trial's alone: the lowest of a task are filmed first."""
    return noise_seed(trial, -2) / 2**63
