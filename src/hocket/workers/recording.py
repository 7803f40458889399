"""The sinks of a worker, and the tracks that they keep of its running attempt."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hocket.core import plugins
from hocket.core.contracts.recorder import (
    AttemptStart,
    Selective,
    Sink,
    SinkNeeds,
    StepRecord,
    Track,
)
from hocket.core.data import Array, Observation, Outcome, Ref, TaskInfo
from hocket.core.wire import END_TERMINATED, END_TRUNCATED
from hocket.workers.attempt import Attempt


class Recording:
    """Builds the sinks once, opens a track of each for an attempt, feeds and seals them."""

    def __init__(self, sinks: Sequence[Ref], folder: str | None) -> None:
        self._default_folder = self._folder = os.path.abspath(folder or ".")
        self._sinks: list[Sink] = [
            plugins.build("recorders", ref.name, ref.config) for ref in sinks
        ]
        self._tracks: list[Track] = []
        self._abilities: tuple[str, ...] = ()
        self.needs = SinkNeeds()
        """What all sinks together ask for in the attempt that was prepared last."""

    def prepare(
        self, task: TaskInfo, record: Mapping[str, Any], abilities: Collection[str]
    ) -> None:
        """Find out what the sinks ask for in the next attempt. Call it before the reset."""
        self._abilities = tuple(abilities)
        wanted = [
            sink.needs_of(task, record, abilities) if isinstance(sink, Selective) else sink.needs
            for sink in self._sinks
        ]
        self.needs = SinkNeeds(
            observations=any(needs.observations for needs in wanted),
            states=any(needs.states for needs in wanted),
            cameras=tuple(dict.fromkeys(key for needs in wanted for key in needs.cameras)),
            all_cameras=any(needs.all_cameras for needs in wanted),
        )

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded of this attempt."""
        return bool(self._tracks)

    @property
    def observes_each_step(self) -> bool:
        """Whether a sink asks for an observation of every step."""
        return self.needs.observations or self.needs.all_cameras or bool(self.needs.cameras)

    def open(self, attempt: Attempt, prompt: str, record: Mapping[str, Any]) -> None:
        """Begin to record an attempt."""
        self.discard()
        trial = attempt.trial
        # A fleet may be kept for several runs: each attempt says whose it is.
        self._folder = os.path.abspath(record.get("folder") or self._default_folder)
        start = AttemptStart(
            trial=trial,
            attempt=attempt.number,
            task=attempt.task,
            prompt=prompt,
            folder=os.path.join(self._folder, "episodes", trial.slug, str(attempt.number)),
            record=record,
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
        """Feed one step to every track."""
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
        """Make everything durable; gives the files, relative to the run folder."""
        files: list[str] = []
        while self._tracks:
            files += self._tracks.pop(0).seal(outcome)
        return [os.path.relpath(file, self._folder) for file in files]

    def discard(self) -> None:
        """Forget what was recorded of an attempt that does not count."""
        while self._tracks:
            self._tracks.pop().discard()
