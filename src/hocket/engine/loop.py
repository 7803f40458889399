"""The one loop that joins fleet, policy and readers.

    trials -> begin -> Ready -> batches: scheduler, inference -> chunks -> execute -> Executed -+
                         ^                                                                      |
                         +----------------------------------------------------------------------+

The engine owns what it knows of each lane, and nothing else does. A turn takes what workers and
policy have said, answers it, and lets batches go that are due; it waits only in `Fleet.poll`. What
readers are told is collected over a turn, so that a thousand lanes make a handful of events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from typing import Literal, cast

from hocket.core import events
from hocket.core.contracts.recorder import Durable, Reader, hearers
from hocket.core.data import Episode, Observation, Trial
from hocket.core.events import Event
from hocket.core.specs import EnvSpec
from hocket.core.wire import END_OBSERVED, END_TERMINATED, END_TRUNCATED
from hocket.engine.attempts import Attempts, Lost, Record
from hocket.engine.batches import Batches
from hocket.engine.chunk_rules import ChunkRule
from hocket.engine.config import EngineConfig
from hocket.engine.dispatch import Dispatch, NextChunks
from hocket.engine.garbage import gc_frozen
from hocket.engine.inferring.policy_thread import Answered
from hocket.engine.inferring.replicas import WarmedUp
from hocket.engine.trials import LaneState, Refreshes, Task, TrialQueue
from hocket.errors import PolicyHungError
from hocket.workers import notices
from hocket.workers.fleet import Fleet

_LONGEST_WAIT_S = 1.0
_LOOK_S = 0.1
"""Seconds that a turn waits at most, where something wakes it and where nothing may: a durable
reader was behind, or a server is gone."""


class Engine:
    """Runs trials to their end. One thread calls `run`; `stop` may come from anywhere."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        batches: Batches,
        make_rule: Callable[[], ChunkRule],
        config: EngineConfig,
        readers: Sequence[Reader] = (),
        fits: Callable[[EnvSpec], None] = lambda _: None,
        record: Record | None = None,
        folder: str | None = None,
    ) -> None:
        """`fits` raises for a task that the policy cannot run; `record` says what the sinks are
        asked for in each attempt (nothing where it is None), and `folder` where they write."""
        self._fleet = fleet
        self._batches = batches
        self._inference = batches.inference
        self._delay = batches.delay
        self._config = config
        self._readers = tuple(readers)
        self._hearers: dict[type[Event], list[Reader]] = {}
        """Readers that follow each kind of event, once there was one."""
        self._durable = [reader for reader in readers if isinstance(reader, Durable)]
        self._fits = fits
        self._trials = TrialQueue()
        self._heard: Refreshes | None = None
        """The same, where it must hear of trials."""
        self._attempts = Attempts(fleet, batches, config, make_rule, record, folder)
        self._lanes = self._attempts.lanes
        self._restarts = 0
        """Times that the policy was started anew, as far as attempts know."""
        # What readers are told at the end of the turn, in this order.
        self._executed: list[events.ChunksExecuted] = []
        self._ready: list[tuple[int, Trial, int]] = []
        self._ended: list[tuple[int, Episode]] = []
        self._sealed: list[tuple[Episode, Mapping[str, bytes]]] = []
        self._start = time.perf_counter()
        self._is_stopping = False

    @property
    def is_stuck(self) -> bool:
        """True if the policy never returned: to close it might never return."""
        return self._inference.is_stuck

    def look(self, lane: int) -> Observation:
        """A lane's last observation, for readers that are told that it has executed a chunk: views,
        valid until its next chunk is sent."""
        return self._fleet.arrays(lane)

    def stop(self) -> None:
        """End the run soon, as Ctrl-C does: what has ended is kept, the rest is left."""
        self._is_stopping = True
        self.wake()

    def wake(self) -> None:
        """Look at the trials again soon: more have come, or none will. May come from anywhere."""
        self._fleet.wake()

    def run(
        self,
        trials: TrialQueue,
        *,
        planned: Sequence[Trial],
        done: Sequence[Episode] = (),
        attempts: Mapping[str, int] | None = None,
        cores: int = 1,
        **facts: bool,
    ) -> bool:
        """Run `trials` to the last; True when none is left. PolicyHungError is raised when the
        policy never returned and no other copy of it is left.

        `done` are episodes of an earlier part of the run, and `attempts` the numbers of the next
        attempts at trials that have had some; `facts` are RunStarted's own.
        """
        self._trials = trials
        self._heard = trials if isinstance(trials, Refreshes) else None
        self._attempts.plan(trials, attempts or {})
        self._start = time.perf_counter()
        lanes, policy = self._fleet.config.lanes, self._inference.spec
        self._emit(
            events.RunStarted(
                trials=planned, done=done, lanes=lanes, cores=cores, policy=policy, **facts
            )
        )
        try:
            with suppress(KeyboardInterrupt), gc_frozen(lanes):
                self._inference.start(self._fleet.wake)
                self._fleet.start()
                while self._is_unfinished() and not self._is_stopping:
                    self._take_turn()
                self._tell(self._now())
        except PolicyHungError:
            # What has ended is kept, as after Ctrl-C.
            self._emit(events.RunEnded(time=self._now(), complete=False, notes={}))
            raise
        complete = not self._is_unfinished()
        notes = {"dropped_answers": self._delay.dropped} if self._delay.goes_on else {}
        self._emit(events.RunEnded(time=self._now(), complete=complete, notes=notes))
        return complete

    def _is_unfinished(self) -> bool:
        if self._lanes or self._attempts.are_under_way or self._trials or self._trials.is_open:
            return True
        if self._heard is not None:
            self._heard.refresh()  # What ended last may have asked for more.
        return bool(self._trials)

    def _take_turn(self) -> None:
        longest = _LOOK_S if self._attempts.free or self._batches.recalls else _LONGEST_WAIT_S
        now = time.perf_counter() - self._start
        heard = self._fleet.poll(*self._batches.patience(now, longest))
        now = time.perf_counter() - self._start
        for notice in heard:
            self._hear(notice, now)
        if self._batches.recalls and (is_stale := self._batches.stale()) is not None:
            self._attempts.recall(is_stale)
        self._answer(self._inference.answers(), now)
        self._tell(now)
        if self._heard is not None:
            self._heard.refresh()
        if self._attempts.free and self._assign() and self._fleet.driven is not None:
            # The next poll resets them, and what they see belongs in the batch that leaves now.
            for notice in self._fleet.poll():
                self._hear(notice, self._now())
        while answer := self._batches.leave(self._lanes, self._fleet, now):
            now = self._now()
            self._answer([answer], now)

    # -- what workers say ----------------------------------------------------------------------

    def _hear(self, notice: notices.Notice, now: float) -> None:
        if isinstance(notice, notices.LanesExecuted):
            self._hear_executed(notice, now)
        elif isinstance(notice, notices.LanesBegun):
            self._begun(notice, now)
        elif isinstance(notice, notices.LanesObserved):
            seen, states = self._kept(notice)
            if states:
                self._go_on(self._delay.observed(seen.lanes, states, seen.steps, now), now)
        elif isinstance(notice, notices.LanesTold):
            self._told(notice, now)
        elif isinstance(notice, notices.LaneSealed):
            if (episode := self._attempts.seal(notice)) is not None:
                self._sealed.append((episode, notice.rows))
        elif isinstance(notice, notices.LaneFailed):
            self._failed(notice, now)
        elif isinstance(notice, notices.Remarked):
            if self._attempts.is_news(notice):
                self._emit(events.Noted(text=notice.text))
        elif isinstance(notice, notices.LanesUp):
            for lane in notice.lanes:
                self._attempts.set_free(lane)
            self._emit(events.WorkerChanged(time=now, lanes=notice.lanes, state="up"))
        else:
            self._withdraw(notice.lanes, "recycled", notice.reason, now)

    def _begun(self, notice: notices.LanesBegun, now: float) -> None:
        queues: dict[Task, int] = {}
        for lane, attempt, prompt in zip(*notice[:3], strict=True):
            state = self._lanes.get(lane)
            if state is None or state.attempt != attempt:
                continue
            task = (state.trial.suite, state.trial.task)
            if notice.spec is not None and task not in self._attempts.specs:
                self._learn(task, notice.spec, now)
            spec = self._attempts.specs[task]
            state.prompt = prompt or spec.task.prompt
            state.action_size, state.env = spec.action.size, spec
            if task not in queues:  # the notice is of one worker
                kind = (self._fleet.signature(lane), state.action_size)
                queues[task] = self._batches.queue(kind)
            state.queue = queues[task]
            if self._attempts.suspects.is_alone(state.trial.id):
                state.queue = self._batches.apart(state.queue, lane)
            self._batches.add(NextChunks([lane], [state], [None]), now)
            self._ready.append((lane, state.trial, state.attempt))
            if notice.differs is not None and self._attempts.starts.hear(state):
                self._emit(events.StartsCompared(time=now, suite=task[0], differs=notice.differs))

    def _learn(self, task: Task, spec: EnvSpec, now: float) -> None:
        self._fits(spec)
        self._attempts.specs[task] = spec
        self._batches.bind(spec)
        self._emit(events.SpecLearned(time=now, suite=task[0], spec=spec))
        self._hearers.clear()  # Readers may follow more now.

    def _kept(self, notice: notices.Rows) -> tuple[notices.Rows, list[LaneState]]:
        """A notice without what it says of attempts that were lost while it was under way, and the
        attempts that it is of."""
        states = list(map(self._lanes.get, notice.lanes))
        attempts = [state and state.attempt for state in states]
        if attempts != notice.attempts:
            is_kept = [a == b for a, b in zip(attempts, notice.attempts, strict=True)]
            notice, states = notices.where(notice, is_kept), list(compress(states, is_kept))
        return notice, cast("list[LaneState]", states)

    def _hear_executed(self, notice: notices.LanesExecuted, now: float) -> None:
        notice, running = self._kept(notice)
        if not running:
            return
        for state, steps, total in zip(running, notice.steps, notice.totals, strict=True):
            state.steps += steps
            state.total += total
            state.chunk += 1
        lanes, ends = notice.lanes, notice.ends
        after = self._delay.executed(lanes, running, ends, notice.busy_s, now)
        nothing, is_any_over = (None,) * len(lanes), any(ends)
        executed = events.ChunksExecuted(
            now,
            lanes,
            [state.trial for state in running],
            notice.attempts,
            notice.chunks,
            notice.steps,
            notice.rewards,
            [end & END_TERMINATED != 0 for end in ends],
            [end & END_TRUNCATED != 0 for end in ends],
            notice.busy_s,
            notice.observe_s,
            self._finals(notice) if is_any_over and self._config.final_observation else nothing,
        )
        self._executed.append(executed)
        if is_any_over:
            for lane, state, end in zip(lanes, running, ends, strict=True):
                if end:
                    episode = state.episode(end, now)
                    self._attempts.end(lane, episode)
                    self._ended.append((lane, episode))
        self._go_on(after, now)

    def _go_on(self, after: NextChunks, now: float) -> None:
        for dispatch in after.due:
            self._settle(dispatch, now)
        self._batches.add(after, now)

    def _told(self, notice: notices.LanesTold, now: float) -> None:
        """Tell readers what envs told of chunks that are still those of their lanes."""
        kept, states = self._kept(notice)
        if states:
            trials = [state.trial for state in states]
            _, attempts, chunks, numbers = kept
            self._emit(
                events.InfoTold(
                    time=now, trials=trials, attempts=attempts, chunks=chunks, numbers=numbers
                )
            )

    def _finals(self, notice: notices.LanesExecuted) -> Sequence[Observation | None]:
        # The lanes are free at once, and their next episodes would write into the same memory.
        return [
            {key: view.copy() for key, view in self._fleet.arrays(lane, chunk).items()}
            if end & END_OBSERVED
            else None
            for lane, chunk, end in zip(notice.lanes, notice.chunks, notice.ends, strict=True)
        ]

    def _failed(self, notice: notices.LaneFailed, now: float) -> None:
        if (verdict := notice.verdict(any_built=bool(self._attempts.specs))) is not None:
            raise verdict
        if notice.gone:
            self._withdraw([notice.lane], "lost", notice.message, now)
        self._tell_lost(self._attempts.failed(notice, now))

    def _withdraw(
        self, lanes: Sequence[int], state: Literal["lost", "recycled"], reason: str, now: float
    ) -> None:
        self._attempts.withdraw(lanes)
        self._emit(events.WorkerChanged(time=now, lanes=lanes, state=state, reason=reason))

    def _tell_lost(self, lost: Sequence[Lost]) -> None:
        for event, episode in lost:
            self._tell(event.time)
            self._emit(event)
            if episode is not None:
                self._ended.append((event.lane, episode))
                self._sealed.append((episode, {}))

    # -- chunks --------------------------------------------------------------------------------

    def _answer(self, answers: Sequence[Answered | WarmedUp], now: float) -> None:
        """Give lanes what the policy has answered."""
        for answer in answers:
            if isinstance(answer, WarmedUp):
                self._batches.warmed_up(answer)
                continue
            dispatch = self._batches.dispatch(answer, self._lanes, now)
            self._settle(dispatch, now)
            self._emit(dispatch.event(now, self._start))
            if self._delay.goes_on:
                self._attempts.answered(dispatch.batch)
        if self._inference.restarts != self._restarts:
            self._restarts = self._inference.restarts
            self._tell_lost(self._attempts.begin_anew(now))
        if self._batches.checks.made:
            self._emit(events.RowsChecked(time=now, checks=self._batches.take_checks()))

    def _settle(self, dispatch: Dispatch, now: float) -> None:
        if dispatch.failed:
            self._tell_lost(self._attempts.fail_rows(dispatch, now))
        if dispatch.lanes:
            self._batches.execute(dispatch, self._fleet, now)

    # -- trials --------------------------------------------------------------------------------

    def _assign(self) -> bool:
        """Give free lanes trials, unless a durable reader is behind; true where any got one."""
        if not self._trials or any(reader.behind() for reader in self._durable):
            return False
        now = self._now()
        lanes, began, records = self._attempts.begin(now)
        trials, attempts = [state.trial for state in began], [state.attempt for state in began]
        self._emit(events.AttemptsBegan(time=now, lanes=lanes, trials=trials, attempts=attempts))
        self._fleet.begin(
            lanes,
            attempts,
            trials,
            [self._config.max_steps] * len(lanes),
            final_observation=self._config.final_observation,
            record=records,
        )
        return True

    # -- readers -------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _emit(self, event: Event) -> None:
        kind = type(event)
        if kind not in self._hearers:
            self._hearers[kind] = hearers(self._readers, kind)
        for reader in self._hearers[kind]:
            reader.on(event)

    def _tell(self, now: float) -> None:
        """Tell readers what the turn brought, in the order in which they must hear it."""
        for event in self._executed:
            self._emit(event)
        self._executed.clear()
        if self._ready:
            lanes, trials, attempts = zip(*self._ready, strict=True)
            self._ready.clear()
            self._emit(events.LanesReady(time=now, lanes=lanes, trials=trials, attempts=attempts))
        if self._ended:
            ended, episodes = zip(*self._ended, strict=True)
            self._ended.clear()
            self._emit(events.EpisodesEnded(time=now, lanes=ended, episodes=episodes))
        if self._sealed:
            sealed, rows = zip(*self._sealed, strict=True)
            self._sealed.clear()
            self._emit(events.EpisodesSealed(time=now, episodes=sealed, rows=rows))
