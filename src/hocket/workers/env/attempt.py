"""One try at a trial, as the worker keeps it: steps, limit, success, and its recording."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from hocket.core import plugins
from hocket.core.contracts.recorder import (
    EVIDENCE,
    STREAM,
    AttemptStart,
    Sink,
    SinkNeeds,
    StepRecord,
    Track,
)
from hocket.core.data import (
    NOTHING_TOLD,
    Array,
    InfoValues,
    Observation,
    Outcome,
    Ref,
    Trial,
    noise_seed,
)
from hocket.core.outcomes import Goals, told_at_end
from hocket.core.specs import TaskInfo
from hocket.core.wire import END_JUDGED, END_SUCCESS, END_TERMINATED, END_TRUNCATED
from hocket.errors import HocketError, RecorderError
from hocket.system.text import account


class Attempt:
    """Counts steps and decides how an episode ends. `number` counts a trial's attempts from 0."""

    def __init__(
        self, trial: Trial, number: int, task: TaskInfo, *, max_steps: int, final: bool
    ) -> None:
        self.trial = trial
        self.number = number
        self.task = task
        self.final_observation = final
        self.steps = 0
        self.ends = 0
        self.success: bool | None = None
        """Success at the last step; None where the env did not say."""
        self.is_judged = False
        """The env has said at some step if it succeeded."""
        self.told: InfoValues = NOTHING_TOLD
        """What the env told at the end beside its outcome."""
        self.limit = max_steps or task.max_steps
        self._won = False
        self._goals: Goals | None = None
        """What it has reached, where the env tells more than a bool."""

    @property
    def progress(self) -> float | None:
        """The share of subgoals that were reached, or the score."""
        return None if self._goals is None else self._goals.progress()

    def judge(self, info: Mapping[str, Any], terminated: bool, truncated: bool) -> int:  # noqa: FBT001
        """Count one step; flags `END_*` where the episode ends at it, else 0."""
        self.steps += 1
        told = info.get("success")
        if not info:
            told = None
        elif told.__class__ is not bool or self.task.score_key:
            self._goals = self._goals or Goals()
            told = self._goals.outcome(info, self.task)
        self.success = told
        rule = self.task.success_rule
        if self.success is not None:
            self.is_judged = True
            self._won = self.success or (self._won and rule != "final")
            if self.success and rule == "first":
                terminated = True
        elif rule == "final":
            self._won = False
        if self.limit and self.steps >= self.limit and not terminated:
            truncated = True
        if not (terminated or truncated):
            return 0
        self.ends = (
            END_TERMINATED * terminated
            | END_TRUNCATED * truncated
            | END_JUDGED * self.is_judged
            | END_SUCCESS * self._won
        )
        self.told = told_at_end(info, self.task) if info else NOTHING_TOLD
        return self.ends


NOTHING_NEEDED = SinkNeeds()


def build_sinks(refs: Sequence[Ref]) -> list[Sink]:
    return [plugins.build("recorders", ref.name, ref.config) for ref in refs]


class Tracks:
    """The recording of one attempt: a track of each sink, opened, fed and sealed together. It is
    made before the reset, and then says what the sinks ask for."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        task: TaskInfo,
        record: Mapping[str, Any],
        abilities: Collection[str],
        folder: str | None,
        *,
        streams: bool = False,
    ) -> None:
        """`folder` is the run's, where `record` names no other: a fleet may be kept for several
        runs. Where `record` asks for it, and it `streams`, rows are left here."""
        self.rows: dict[str, bytes] | None = {} if streams and record.get(STREAM) else None
        """What files of rows would hold, by their names, once it is sealed."""
        self._sinks = sinks
        self._record = record
        self._abilities = tuple(abilities)
        self._folder = os.path.abspath(record.get("folder") or folder or ".")
        self._tracks: list[Track] = []
        self.needs, wanted = NOTHING_NEEDED, list[SinkNeeds]()
        for sink in sinks:
            # A Selective sink; to look for that Protocol's methods takes longer than to ask it.
            ask = getattr(sink, "needs_of", None)
            wanted.append(sink.needs if ask is None else ask(task, record, abilities))
        if wanted != [NOTHING_NEEDED] * len(wanted):
            self.needs = SinkNeeds(
                observations=any(needs.observations for needs in wanted),
                states=any(needs.states for needs in wanted),
                cameras=tuple(dict.fromkeys(key for needs in wanted for key in needs.cameras)),
                all_cameras=any(needs.all_cameras for needs in wanted),
                stride=math.gcd(*(needs.stride for needs in wanted if _looks(needs))) or 1,
            )
        self.looks = _looks(self.needs)
        """A sink asks for observations: of every step, or of one in `needs.stride`."""

    @property
    def is_brief(self) -> bool:
        """True if to seal it takes no longer than to say so: a sink of the user's may take any
        time, and a film its own."""
        return all(getattr(track, "is_brief", False) for track in self._tracks)

    @property
    def is_on(self) -> bool:
        return bool(self._tracks)

    def open(self, attempt: Attempt, prompt: str) -> None:
        if not self._sinks:
            return
        trial = attempt.trial
        start = AttemptStart(
            trial=trial,
            attempt=attempt.number,
            task=attempt.task,
            prompt=prompt,
            folder=os.path.join(self._folder, "episodes", trial.slug, str(attempt.number)),
            record=self._record,
            abilities=self._abilities,
            rows=self.rows,
        )
        try:
            for sink in self._sinks:
                self._tracks.append(sink.open(start))
        except Exception as exc:  # noqa: BLE001 - told as what it is
            raise _blamed(exc) from None

    def step(
        self,
        attempt: Attempt,
        action: Array | None,
        reward: float,
        *,
        chunk: int,
        age: int,
        observation: Observation | None,
        state: Array | None,
    ) -> None:
        ends = attempt.ends
        record = StepRecord(
            attempt.steps,
            action,
            reward,
            bool(ends & END_TERMINATED),
            bool(ends & END_TRUNCATED),
            attempt.success,
            chunk,
            age,
            observation,
            state,
        )
        try:
            for track in self._tracks:
                track.step(record)
        except Exception as exc:  # noqa: BLE001 - told as what it is
            raise _blamed(exc) from None

    def seal(self, outcome: Outcome) -> list[str]:
        """Make everything durable; return the files, relative to the run folder."""
        files: list[str] = []
        try:
            while self._tracks:
                files += self._tracks.pop(0).seal(outcome)
        except Exception as exc:  # noqa: BLE001 - told as what it is
            raise _blamed(exc) from None
        return self._named(files)

    def discard(self) -> None:
        while self._tracks:
            self._tracks.pop().discard()

    def abandon(self) -> list[str]:
        """Keep what was recorded of an attempt that is lost to an error, where that was asked for;
        return the files, relative to the run folder. A track that cannot be sealed leaves none."""
        files: list[str] = []
        while self._tracks and self._record.get(EVIDENCE):
            track = self._tracks.pop(0)
            try:
                files += track.seal(Outcome.ERROR)
            except Exception:  # noqa: BLE001 - the error that lost the attempt is the one to tell
                track.discard()
        self.discard()
        return self._named(files)

    def _named(self, files: Sequence[str]) -> list[str]:
        """Absolute paths as they are from the run folder."""
        root = f"{self._folder}{os.sep}"
        return [
            file[len(root) :] if file.startswith(root) else os.path.relpath(file, self._folder)
            for file in files
        ]


def _blamed(exc: Exception) -> HocketError:
    """What records an episode, and not its env, raised this."""
    if isinstance(exc, HocketError):
        return exc
    return RecorderError(f"What records the episode raised {account(exc)}")


def _looks(needs: SinkNeeds) -> bool:
    """True if observations or pictures are asked for."""
    return needs.observations or needs.all_cameras or bool(needs.cameras)


def seed_globals(trial: Trial) -> None:
    """Seed the global random numbers, which some envs use, with the trial alone."""
    seed = noise_seed(trial, -1)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
