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
    AttemptStart,
    Selective,
    Sink,
    SinkNeeds,
    StepRecord,
    Track,
)
from hocket.core.data import Array, Observation, Outcome, Ref, TaskInfo, Trial, noise_seed
from hocket.core.wire import END_JUDGED, END_SUCCESS, END_TERMINATED, END_TRUNCATED

SUCCESS_KEYS = ("success", "is_success")
"""Where an env says in `info` whether it has succeeded."""


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
        self._limit = max_steps or task.max_steps
        self._won = False

    def judge(self, info: Mapping[str, Any], *, terminated: bool, truncated: bool) -> int:
        """Count one step; flags `END_*` where the episode ends at it, else 0."""
        self.steps += 1
        self.success = None
        for key in SUCCESS_KEYS:
            if key in info:
                told = info[key]
                # numpy takes longer for it than all the rest here takes.
                self.success = told if isinstance(told, bool) else bool(np.any(told))
                break
        rule = self.task.success_rule
        if self.success is not None:
            self.is_judged = True
            self._won = self.success or (self._won and rule != "final")
            if self.success and rule == "first":
                terminated = True
        elif rule == "final":
            self._won = False
        if self._limit and self.steps >= self._limit and not terminated:
            truncated = True
        if not (terminated or truncated):
            return 0
        self.ends = (
            END_TERMINATED * terminated
            | END_TRUNCATED * truncated
            | END_JUDGED * self.is_judged
            | END_SUCCESS * self._won
        )
        return self.ends


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
    ) -> None:
        """`folder` is the run's, where `record` names no other: a fleet may be kept for several
        runs."""
        self._sinks = sinks
        self._record = record
        self._abilities = tuple(abilities)
        self._folder = os.path.abspath(record.get("folder") or folder or ".")
        self._tracks: list[Track] = []
        wanted = [
            sink.needs_of(task, record, abilities) if isinstance(sink, Selective) else sink.needs
            for sink in sinks
        ]
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
    def is_on(self) -> bool:
        return bool(self._tracks)

    def open(self, attempt: Attempt, prompt: str) -> None:
        trial = attempt.trial
        start = AttemptStart(
            trial=trial,
            attempt=attempt.number,
            task=attempt.task,
            prompt=prompt,
            folder=os.path.join(self._folder, "episodes", trial.slug, str(attempt.number)),
            record=self._record,
            abilities=self._abilities,
        )
        for sink in self._sinks:
            self._tracks.append(sink.open(start))

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
        record = StepRecord(
            step=attempt.steps,
            action=action,
            reward=reward,
            terminated=bool(attempt.ends & END_TERMINATED),
            truncated=bool(attempt.ends & END_TRUNCATED),
            success=attempt.success,
            chunk=chunk,
            age=age,
            observation=observation,
            state=state,
        )
        for track in self._tracks:
            track.step(record)

    def seal(self, outcome: Outcome) -> list[str]:
        """Make everything durable; return the files, relative to the run folder."""
        files: list[str] = []
        while self._tracks:
            files += self._tracks.pop(0).seal(outcome)
        return [os.path.relpath(file, self._folder) for file in files]

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
        return [os.path.relpath(file, self._folder) for file in files]


def _looks(needs: SinkNeeds) -> bool:
    """True if observations or pictures are asked for."""
    return needs.observations or needs.all_cameras or bool(needs.cameras)


def seed_globals(trial: Trial) -> None:
    """Seed the global random numbers, which some envs use, with the trial alone."""
    seed = noise_seed(trial, -1)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
