"""Trajectories under way: they follow the engine's events, and give stretches of what each chunk
saw and sampled and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hocket.core.data import Array, Chunk, Episode, Outcome, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    EpisodesEnded,
    InfoTold,
)
from hocket.errors import ConfigError
from hocket.train.algorithms.stretches import Stretch
from hocket.train.collect.plan import is_evaluation
from hocket.train.collect.policy import LOG_PROB, SAMPLE, VALUE, VERSION
from hocket.train.config import TrainConfig
from hocket.train.networks.contract import BASE, PROMPT, TASK
from hocket.train.rewards import Rewards

_OWN = (SAMPLE, LOG_PROB, VALUE, VERSION, BASE, PROMPT)
"""Extras of an answer that have columns of their own; the others are the network's."""


@dataclass(slots=True)
class _Row:
    """A chunk that was inferred; it has rewards once it was executed."""

    observation: dict[str, Array]
    extras: Mapping[str, Array]
    chunk: int
    executed: int = 0
    rewards: Array | None = None
    info: Mapping[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class _Open:
    """An attempt in flight."""

    trial: Trial
    lane: int
    floor: int
    """No chunk of its open stretch has an older version."""
    prompt: str = ""
    rows: list[_Row] = field(default_factory=list)
    final: Mapping[str, Array] | None = None


Key = tuple[str, int]


class Trajectories:
    """The trajectories of training attempts. One thread calls it.

    `on` returns stretches when they are cut; `seal` returns the last stretch of an episode, once
    the engine says that the episode counts.
    """

    def __init__(
        self,
        config: TrainConfig,
        tasks: Sequence[str],
        newest: Callable[[], int],
        *,
        rewards: Rewards,
        texts: Sequence[str] = ("",),
    ) -> None:
        """A row's `task` is an index into `tasks`, and what an answer calls its prompt is one into
        `texts`, which may grow. `newest` returns the version that any later inference will have at
        least."""
        needs_whole = config.algo == "grpo" or rewards.needs_whole_episodes
        if needs_whole and config.segment_chunks:
            raise ConfigError("A reward function sees whole episodes; leave out --segment-chunks.")
        self._tasks = tasks
        self._newest = newest
        self._rewards = rewards
        self._texts = texts
        self._segment_chunks = config.segment_chunks
        self._max_staleness = 0 if needs_whole else config.staleness
        """Versions that an episode may span before it is cut, rather than lost; 0 never cuts. Where
        only whole episodes teach, the learner waits for slow ones instead."""
        self._open: dict[Key, _Open] = {}
        self._ended: dict[Key, Stretch] = {}
        self._terms: dict[Key, dict[str, float]] = {}

    @property
    def in_flight(self) -> int:
        """Training attempts that have begun and not ended."""
        return len(self._open)

    @property
    def floor(self) -> int:
        """No chunk that is still to come is older than this version."""
        open_floors = [one.floor for one in self._open.values()]
        ended_floors = [stretch.oldest for stretch in self._ended.values()]
        return min([self._newest(), *open_floors, *ended_floors])

    def on(self, event: object) -> list[Stretch]:
        """Follow an event; return the stretches that it completes."""
        if isinstance(event, AttemptsBegan):
            for lane, trial, attempt in zip(event.lanes, event.trials, event.attempts, strict=True):
                if not is_evaluation(trial):
                    self._open[trial.id, attempt] = _Open(trial, lane, self._newest())
        elif isinstance(event, BatchInferred):
            return self._inferred(event)
        elif isinstance(event, InfoTold):
            self._told(event)
        elif isinstance(event, ChunksExecuted):
            self._executed(event)
        elif isinstance(event, EpisodesEnded):
            for episode in event.episodes:
                self._end(episode)
        elif isinstance(event, AttemptFailed):
            self._open.pop((event.trial.id, event.attempt), None)
            self._ended.pop((event.trial.id, event.attempt), None)
            self._terms.pop((event.trial.id, event.attempt), None)
        return []

    def seal(self, episode: Episode) -> Stretch | None:
        """Return the last stretch of an episode that counts; None if lost to errors."""
        return self._ended.pop((episode.trial.id, episode.attempt), None)

    def terms(self, episode: Episode) -> dict[str, float]:
        """Return what an episode that counts adds to the log, once."""
        return self._terms.pop((episode.trial.id, episode.attempt), {})

    def _inferred(self, event: BatchInferred) -> list[Stretch]:
        assert event.observations is not None  # the engine was asked to keep them
        cut = []
        for i, chunk in enumerate(event.delivered):
            one = self._open.get((event.trials[i].id, event.attempts[i]))
            if one is None or chunk is None:
                continue
            row = self._row(event.observations, i, event.trials[i], chunk, event.chunks[i])
            version = int(chunk.extras[VERSION])
            one.prompt = self._texts[int(chunk.extras.get(PROMPT, 0))]
            if one.rows and self._is_long(one, version):
                # What a critic needs of the observation after a stretch.
                final = {key: seen for key, seen in row.observation.items() if key != BASE}
                stretch = self._stretch(event.attempts[i], one, final=final)
                cut.append(self._rewards.give(stretch).stretch)
                one.rows = []
            one.floor = min(one.floor, version) if one.rows else version
            one.rows.append(row)
        return cut

    def _row(
        self, observations: Mapping[str, Array], i: int, trial: Trial, chunk: Chunk, number: int
    ) -> _Row:
        """Row `i` of a batch, which is the chunk `number` of its attempt."""
        observation = {key: array[i] for key, array in observations.items()}
        observation[TASK] = np.asarray(self._tasks.index(trial.task), np.int64)
        if BASE in chunk.extras:
            observation[BASE] = chunk.extras[BASE]
        return _Row(observation, chunk.extras, number)

    def _is_long(self, one: _Open, version: int) -> bool:
        if self._segment_chunks and len(one.rows) >= self._segment_chunks:
            return True
        return bool(self._max_staleness) and version - one.floor >= self._max_staleness

    def _told(self, event: InfoTold) -> None:
        """Keep what an env told of a chunk; that it was executed is told next."""
        for trial, attempt, chunk, numbers in zip(
            event.trials, event.attempts, event.chunks, event.numbers, strict=True
        ):
            one = self._open.get((trial.id, attempt))
            if one is not None and one.rows[-1].chunk == chunk:
                one.rows[-1].info = numbers

    def _executed(self, event: ChunksExecuted) -> None:
        for i, trial in enumerate(event.trials):
            one = self._open.get((trial.id, event.attempts[i]))
            if one is None:
                continue
            row = one.rows[-1]
            assert row.chunk == event.chunks[i]  # chunks of an attempt are executed one by one
            row.executed, row.rewards = event.steps[i], event.rewards[i]
            final = event.final[i]
            goes_on = event.truncated[i] and not event.terminated[i]
            # Functions and models judge an episode that ended for good by its end too.
            if final is not None and (goes_on or self._rewards.needs_whole_episodes):
                one.final = {**final, TASK: row.observation[TASK]}

    def _end(self, episode: Episode) -> None:
        one = self._open.pop((episode.trial.id, episode.attempt), None)
        # What a simulator does that diverged says nothing of the actions.
        if one is None or episode.outcome is Outcome.ERROR or episode.diverged:
            return
        stretch = self._stretch(
            episode.attempt,
            one,
            final=one.final,
            terminated=episode.terminated,
            # What is both ended for good: nothing comes after it.
            truncated=episode.truncated and not episode.terminated,
        )
        if episode.outcome is not Outcome.FINISHED:
            stretch = replace(stretch, success=episode.outcome is Outcome.SUCCESS)
        rewarded = self._rewards.give(stretch)
        self._terms[episode.trial.id, episode.attempt] = rewarded.to_curves()
        self._ended[episode.trial.id, episode.attempt] = rewarded.stretch

    def _stretch(
        self,
        attempt: int,
        one: _Open,
        *,
        final: Mapping[str, Array] | None,
        terminated: bool = False,
        truncated: bool = False,
    ) -> Stretch:
        rows = one.rows
        length = rows[0].extras[SAMPLE].shape[0]
        rewards = np.zeros((len(rows), length))
        for c, row in enumerate(rows):
            assert row.rewards is not None  # every row before a cut or an end was executed
            rewards[c, : row.executed] = row.rewards
        extras = [key for key in rows[0].extras if key not in _OWN]
        return Stretch(
            trial=one.trial,
            attempt=attempt,
            lane=one.lane,
            observation={
                key: np.stack([row.observation[key] for row in rows]) for key in rows[0].observation
            },
            actions=_column(rows, SAMPLE),
            executed=np.array([row.executed for row in rows], np.int64),
            rewards=rewards,
            log_prob=_column(rows, LOG_PROB),
            value=_column(rows, VALUE),
            version=_column(rows, VERSION),
            chunk=np.array([row.chunk for row in rows], np.int64),
            terminated=terminated,
            truncated=truncated,
            final=final,
            prompt=one.prompt,
            extras={key: _column(rows, key) for key in extras},
            info=_info(rows, length),
        )


def _column(rows: Sequence[_Row], key: str) -> Array:
    return np.stack([row.extras[key] for row in rows])


def _info(rows: Sequence[_Row], length: int) -> dict[str, Array]:
    """What an env told at each step, `[C, T]` by key."""
    keys = dict.fromkeys(key for row in rows for key in row.info)
    found = {key: np.full((len(rows), length), np.nan) for key in keys}
    for c, row in enumerate(rows):
        for key, numbers in row.info.items():
            found[key][c, : len(numbers)] = numbers
    return found
