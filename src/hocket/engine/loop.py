"""The one loop that joins fleet, policy and readers.

    trials -> begin -> Ready -> batches: scheduler, inference -> chunks -> execute -> Executed -+
                         ^                                                                      |
                         +----------------------------------------------------------------------+

The engine owns what it knows of each lane, and nothing else does. A turn takes what workers and
policy have said, answers it, and lets batches go that are due; it waits only in `Fleet.poll`. What
readers are told is collected over a turn, so that a thousand lanes make a handful of events.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, cast

from hocket.core.contracts.recorder import Durable, Reader
from hocket.core.data import EnvSpec, Episode, Observation, Outcome, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    Event,
    InfoTold,
    Noted,
    RowsChecked,
    RunEnded,
    RunStarted,
    SpecLearned,
    StartsCompared,
    WorkerChanged,
)
from hocket.core.wire import END_OBSERVED, TWICE
from hocket.engine.batches import Batches, Delivery, told_of
from hocket.engine.chunk_rules import ChunkRule, SharedRule
from hocket.engine.delay import Ahead, HeldLanes
from hocket.engine.garbage import gc_frozen
from hocket.engine.inferring.inference import Inference
from hocket.engine.inferring.policy_thread import account
from hocket.engine.inferring.suspects import Suspects
from hocket.engine.starts import StartChecks
from hocket.engine.trials import LaneState, TrialQueue
from hocket.engine.turn import Turn
from hocket.errors import EnvError, PolicyHungError, SecondResetError
from hocket.workers import inbox as notices
from hocket.workers.fleet import Fleet

_LONGEST_WAIT_S = 1.0
_LOOK_S = 0.1
"""Seconds that a turn waits at most, where something wakes it and where nothing may: a durable
reader was behind, or a server is gone. Chosen by hand, with no benchmark row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    retries: int = 2
    """More attempts at a trial whose attempt was lost to a fault."""
    max_steps: int | None = None
    """Ends every episode here; None leaves it to the task."""
    gives_back: bool = False
    """Whoever hands out the trials decides what becomes of a lost attempt: it is told as
    AttemptFailed, `again` where the trial is not to blame, and neither runs again here nor ends as
    an ERROR."""
    final_observation: bool = False
    """Observe when an episode ends, and tell readers what was seen."""
    compares_starts: bool = False
    """Reset the first trial of each suite twice, and tell readers whether it started the same."""


class Engine:
    """Runs trials to their end. One thread calls `run`; `stop` may come from anywhere."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        inference: Inference,
        batches: Batches,
        make_rule: Callable[[], ChunkRule],
        config: EngineConfig,
        readers: Sequence[Reader] = (),
        fits: Callable[[EnvSpec], None] = lambda _: None,
        record: Callable[[Trial, int], Mapping[str, Any]] | None = None,
        folder: str | None = None,
    ) -> None:
        """`fits` raises for a task that the policy cannot run; `record` says what the sinks are
        asked for in each attempt (nothing where it is None), and `folder` where they write."""
        self._fleet = fleet
        self._inference = inference
        self._batches = batches
        self._scheduler = batches.scheduler
        self._delayed = batches.delayed
        self._make_rule = make_rule
        self._rule = make_rule()
        self._shared_rule = self._rule if isinstance(self._rule, SharedRule) else None
        self._config = config
        self._readers = tuple(readers)
        self._durable = [reader for reader in readers if isinstance(reader, Durable)]
        self._fits = fits
        self._record = record
        self._folder = {} if folder is None else {"folder": folder}

        self._name = secrets.token_hex(8)
        """Names the run in sessions: others may ask the same policy for the same trials."""
        self._trials = TrialQueue()
        self._lanes: dict[int, LaneState] = {}
        """Lanes that have an attempt."""
        self._free: list[int] = []
        self._held = HeldLanes()
        self._sealing: dict[int, Episode] = {}
        self._next_attempt: dict[str, int] = {}
        self._failures: Counter[str] = Counter()
        self._suspects = Suspects()
        self._restarts = 0
        """Times that the policy was started anew, as far as attempts know."""
        self._specs: dict[tuple[str, str], EnvSpec] = {}
        self._starts = StartChecks(is_on=config.compares_starts)
        self._kinds: dict[tuple[tuple[str, str], bool], int] = {}
        """Chunks of one task, recorded or not, take about the same time."""
        self._turn = Turn()
        self._start = time.perf_counter()
        self._is_stopping = False

    @property
    def is_stuck(self) -> bool:
        """Whether the policy never returned: to close it might never return."""
        return self._inference.is_stuck

    def look(self, lane: int) -> Observation:
        """A lane's last observation, for readers that are told that it has executed a chunk: views,
        valid until its next chunk is sent."""
        return self._fleet.arrays(lane)

    def stop(self) -> None:
        """End the run soon, as Ctrl-C does: what has ended is kept, the rest is left."""
        self._is_stopping = True
        self._fleet.wake()

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
    ) -> bool:
        """Run `trials` to the last; True when none is left. PolicyHungError is raised when the
        policy never returned and no other copy of it is left.

        `done` are episodes of an earlier part of the run, and `attempts` the numbers of the next
        attempts at trials that have had some.
        """
        self._trials = trials
        self._next_attempt = dict(attempts or {})
        self._start = time.perf_counter()
        lanes, policy = self._fleet.config.lanes, self._inference.spec
        self._emit(RunStarted(trials=planned, done=done, lanes=lanes, cores=cores, policy=policy))
        try:
            with gc_frozen(lanes):
                self._inference.start(self._fleet.wake)
                self._fleet.start()
                while self._is_unfinished() and not self._is_stopping:
                    self._take_turn()
                self._tell()
        except KeyboardInterrupt:
            self._is_stopping = True
        except PolicyHungError:
            # What has ended is kept, as after Ctrl-C.
            self._emit(RunEnded(time=self._now(), complete=False, notes={}))
            raise
        complete = not self._is_unfinished()
        notes = {} if self._delayed is None else {"dropped_answers": self._delayed.dropped}
        self._emit(RunEnded(time=self._now(), complete=complete, notes=notes))
        return complete

    def _is_unfinished(self) -> bool:
        if self._lanes or self._sealing or self._held or self._trials or self._trials.is_open:
            return True
        self._trials.refresh()  # What ended last may have asked for more.
        return bool(self._trials)

    def _take_turn(self) -> None:
        longest = _LOOK_S if self._free or self._batches.recalls else _LONGEST_WAIT_S
        waits = self._batches.patience(self._now(), longest)
        heard = self._fleet.poll(*waits, awaits_all=self._scheduler.awaits_all)
        now = self._now()
        for notice in heard:
            self._hear(notice, now)
        if (is_stale := self._batches.stale()) is not None:
            self._recall(is_stale)
        self._deliver_answers(now)
        self._tell()
        self._trials.refresh()
        if self._assign() and self._fleet.is_at_hand:
            # The next poll resets them, and what they see belongs in the batch that leaves now.
            heard, now = self._fleet.poll(0.0), self._now()
            for notice in heard:
                self._hear(notice, now)
        while self._batches.leave(self._lanes, self._fleet, self._now()):
            self._deliver_answers(self._now())

    # -- what workers say ----------------------------------------------------------------------

    def _hear(self, notice: notices.Notice, now: float) -> None:
        if isinstance(notice, notices.LanesExecuted):
            self._executed(notice, now)
        elif isinstance(notice, notices.LanesReady):
            self._begun(notice, now)
        elif isinstance(notice, notices.LanesObserved):
            self._observed(notice, now)
        elif isinstance(notice, notices.LanesTold):
            self._told(notice, now)
        elif isinstance(notice, notices.LaneSealed):
            self._sealed(notice)
        elif isinstance(notice, notices.LaneFailed):
            self._failed(notice, now)
        elif isinstance(notice, notices.Remarked):
            self._emit(Noted(text=notice.text))
        elif isinstance(notice, notices.LanesUp):
            for lane in notice.lanes:
                if lane not in self._lanes:
                    self._set_free(lane)
            self._emit(WorkerChanged(time=now, lanes=notice.lanes, state="up"))
        else:
            self._withdraw(notice.lanes)
            self._emit(
                WorkerChanged(time=now, lanes=notice.lanes, state="recycled", reason=notice.reason)
            )

    def _begun(self, notice: notices.LanesReady, now: float) -> None:
        queues: dict[tuple[str, str], int] = {}
        for lane, attempt, prompt in zip(
            notice.lanes, notice.attempts, notice.prompts, strict=True
        ):
            state = self._lanes.get(lane)
            if state is None or state.attempt != attempt:
                continue
            task = (state.trial.suite, state.trial.task)
            if notice.spec is not None and task not in self._specs:
                self._fits(notice.spec)
                self._specs[task] = notice.spec
                self._batches.bind(notice.spec)
                self._emit(SpecLearned(time=now, suite=task[0], spec=notice.spec))
            spec = self._specs[task]
            state.prompt = prompt or spec.task.prompt
            state.action_size, state.env = spec.action.size, spec
            if task not in queues:  # the notice is of one worker
                kind = (self._fleet.signature(lane), state.action_size)
                queues[task] = self._batches.queue(kind)
            state.queue = queues[task]
            if self._suspects.is_alone(state.trial.id):
                state.queue = self._batches.apart(state.queue, lane)
            self._batches.add(lane, state, now)
            self._turn.ready.append((lane, state.trial, state.attempt))
            if notice.differs is not None and self._starts.hear(state):
                self._emit(StartsCompared(time=now, suite=task[0], differs=notice.differs))

    def _executed(self, notice: notices.LanesExecuted, now: float) -> None:
        states = list(map(self._lanes.get, notice.lanes))
        if [state and state.attempt for state in states] != notice.attempts:
            # Some of it is of attempts that were lost while this was under way.
            is_kept = [
                state is not None and state.attempt == attempt
                for state, attempt in zip(states, notice.attempts, strict=True)
            ]
            notice = notice.where(is_kept)
            states = list(compress(states, is_kept))
        running = cast("list[LaneState]", states)
        if not running:
            return
        for state, steps, total in zip(running, notice.steps, notice.totals, strict=True):
            state.steps += steps
            state.total += total
            state.chunk += 1
        is_asked = None if self._delayed is None else self._delayed.executed(running, notice.ends)
        self._turn.executed.append(told_of(notice, running, self._finals(notice), now))
        lanes, busy_s, waits = notice.lanes, notice.busy_s, None
        if any(notice.ends):
            for lane, state, end in zip(lanes, running, notice.ends, strict=True):
                if end:
                    self._end(lane, state.episode(end, now))
            waits = [not end for end in notice.ends]
        if is_asked is not None:
            waits = self._go_on(running, is_asked, notice.ends, now)
        if waits is not None:
            running = list(compress(running, waits))
            lanes, busy_s = list(compress(lanes, waits)), list(compress(busy_s, waits))
        if self._delayed is not None:
            busy_s = self._delayed.durations(running, now)
        self._batches.add_all(lanes, running, now, busy_s)

    def _observed(self, notice: notices.LanesObserved, now: float) -> None:
        """Lanes go on while the policy is asked what comes after that."""
        assert self._delayed is not None
        found = [
            (lane, state, steps)
            for lane, attempt, steps in zip(*notice, strict=True)
            if (state := self._lanes.get(lane)) is not None and state.attempt == attempt
        ]
        if found:
            lanes, states, steps = zip(*found, strict=True)
            self._delayed.observed(states, steps)
            self._batches.add_all(lanes, states, now, self._delayed.durations(states, now))

    def _told(self, notice: notices.LanesTold, now: float) -> None:
        """Tell readers what envs told of chunks that are still those of their lanes."""
        kept = [
            (state.trial, attempt, chunk, numbers)
            for lane, attempt, chunk, numbers in zip(*notice, strict=True)
            if (state := self._lanes.get(lane)) is not None and state.attempt == attempt
        ]
        if kept:
            trials, attempts, chunks, numbers = zip(*kept, strict=True)
            self._emit(
                InfoTold(time=now, trials=trials, attempts=attempts, chunks=chunks, numbers=numbers)
            )

    def _go_on(
        self,
        running: Sequence[LaneState],
        is_asked: Sequence[bool],
        ends: Sequence[int],
        now: float,
    ) -> list[bool]:
        """Give lanes the answers that were there before they had executed what was committed; says
        which lanes the policy was not asked for yet."""
        assert self._delayed is not None
        goes_on = [asked and not end for asked, end in zip(is_asked, ends, strict=True)]
        for delivery in self._delayed.catch_up(list(compress(running, goes_on))):
            self._settle(delivery, now)
        return [not asked and not end for asked, end in zip(is_asked, ends, strict=True)]

    def _finals(self, notice: notices.LanesExecuted) -> Sequence[Observation | None]:
        if not self._config.final_observation:
            return (None,) * len(notice.lanes)
        # The lanes are free at once, and their next episodes would write into the same memory.
        return [
            {key: view.copy() for key, view in self._fleet.arrays(lane, chunk).items()}
            if end & END_OBSERVED
            else None
            for lane, chunk, end in zip(notice.lanes, notice.chunks, notice.ends, strict=True)
        ]

    def _end(self, lane: int, episode: Episode) -> None:
        self._release(lane)
        self._suspects.acquit(episode.trial.id)
        self._set_free(lane)
        self._sealing[lane] = episode
        self._turn.ended.append((lane, episode))

    def _release(self, lane: int) -> LaneState:
        """Take the lane's attempt from it; nobody awaits the lane any more."""
        self._scheduler.leave(lane)
        state = self._lanes.pop(lane)
        self._starts.release(state)
        if self._delayed is not None and self._batches.is_under_way(state):
            self._held.hold(lane, state)
        elif self._inference.has_sessions:
            self._inference.end_session(state.session)
        return state

    def _set_free(self, lane: int) -> None:
        """Let the lane take another trial, once the policy reads nothing of its last one."""
        if lane in self._held:
            self._held.set_free(lane, is_free=True)
        else:
            self._free.append(lane)

    def _withdraw(self, lanes: Sequence[int]) -> None:
        """Give these lanes no trial before their workers are up again."""
        self._free = [lane for lane in self._free if lane not in lanes]
        for lane in lanes:
            if lane in self._held:
                self._held.set_free(lane, is_free=False)

    def _sealed(self, notice: notices.LaneSealed) -> None:
        episode = self._sealing.get(notice.lane)
        if episode is not None and episode.attempt == notice.attempt:
            del self._sealing[notice.lane]
            if notice.files:
                episode = episode._replace(files=tuple(notice.files))
            self._turn.sealed.append(episode)

    # -- faults --------------------------------------------------------------------------------

    def _failed(self, notice: notices.LaneFailed, now: float) -> None:
        lane, error = notice.lane, notice.account
        if (verdict := notice.verdict(any_built=bool(self._specs))) is not None:
            raise verdict
        if notice.gone:
            self._withdraw([lane])
            self._emit(WorkerChanged(time=now, lanes=[lane], state="lost", reason=notice.message))
        if lane in self._sealing and (notice.gone or notice.sealing):
            # The episode ended, but what it recorded is lost: it never happened.
            episode = self._sealing.pop(lane)
            self._retry(lane, episode.trial, episode.attempt, error, now)
        state = self._lanes.get(lane)
        is_its_own = state is not None and state.attempt == notice.attempt and not notice.sealing
        if state is not None and (notice.gone or is_its_own):
            # What was only looked at costs no trial anything.
            self._lose(lane, error, now, spends=notice.kind != SecondResetError.__name__)
            if not notice.gone:
                self._set_free(lane)

    def _lose(self, lane: int, error: str, now: float, *, spends: bool = True) -> None:
        """Give an attempt up; its trial runs again while it has retries left."""
        state = self._release(lane)
        self._retry(lane, state.trial, state.attempt, error, now, steps=state.steps, spends=spends)

    def _retry(
        self,
        lane: int,
        trial: Trial,
        attempt: int,
        error: str,
        now: float,
        *,
        steps: int = 0,
        spends: bool = True,
    ) -> None:
        if self._config.gives_back:
            self._tell()
            self._emit(
                AttemptFailed(
                    time=now, lane=lane, trial=trial, attempt=attempt, error=error, again=not spends
                )
            )
            return
        self._failures[trial.id] += spends
        again = not spends or self._failures[trial.id] <= self._config.retries
        if not again and not self._specs:
            raise EnvError(f"No env could be built and reset, in {attempt + 1} attempts.\n{error}")
        self._tell()
        self._emit(
            AttemptFailed(
                time=now, lane=lane, trial=trial, attempt=attempt, error=error, again=again
            )
        )
        if again:
            self._trials.give_back(trial)
            return
        episode = Episode(trial, attempt, Outcome.ERROR, steps, 0.0, error=error)
        self._turn.ended.append((lane, episode))
        self._turn.sealed.append(episode)

    # -- chunks --------------------------------------------------------------------------------

    def _deliver_answers(self, now: float) -> None:
        for delivery in self._batches.deliveries(self._lanes, self._shared_rule, now):
            self._settle(delivery, now)
            self._emit(delivery.event(now, self._start))
            if self._held:
                self._let_go(delivery)
        if self._inference.restarts != self._restarts:
            self._restarts = self._inference.restarts
            self._begin_anew(now)
        checks = self._batches.take_checks()
        if checks.made:
            self._emit(RowsChecked(time=now, checks=checks))

    def _settle(self, delivery: Delivery, now: float) -> None:
        if delivery.failed:
            self._fail_rows(delivery, now)
        if delivery.lanes:
            self._batches.execute(delivery, self._fleet, now)

    def _let_go(self, delivery: Delivery) -> None:
        """The policy has answered for attempts that were over: their lanes are free now."""
        for lane, state, is_free in self._held.answered(delivery.batch):
            if self._inference.has_sessions:
                self._inference.end_session(state.session)
            if is_free:
                self._free.append(lane)

    def _fail_rows(self, delivery: Delivery, now: float) -> None:
        blameless = delivery.answer.blameless
        is_hung = any(isinstance(error, PolicyHungError) for *_, error in delivery.failed)
        if blameless and not is_hung:
            self._suspects.add(state.trial.id for _, state, _ in delivery.failed)
        for lane, state, error in delivery.failed:
            self._lose(lane, account(error), now, spends=not blameless)
            self._fleet.discard([lane], [state.attempt])
            self._set_free(lane)
            if self._inference.has_sessions and not blameless and len(delivery.batch.lanes) == 1:
                cleared = self._suspects.convict(state.trial.id)
                for other in self._lanes.values():
                    if other.trial.id in cleared:
                        other.queue = self._batches.together(other.queue)

    def _begin_anew(self, now: float) -> None:
        """The policy was started anew: whatever it kept for attempts is gone."""
        if not self._inference.has_sessions:
            return
        for lane, state in list(self._lanes.items()):
            self._lose(lane, "The policy was started anew.", now, spends=False)
            self._fleet.discard([lane], [state.attempt])
            self._set_free(lane)

    def _recall(self, is_stale: Callable[[str], bool]) -> None:
        """Stop chunks whose source is gone: their lanes ask again, with what they see then."""
        for lane, state in self._lanes.items():
            if state.source and is_stale(state.source):
                state.source = ""
                state.rule = self._new_rule()  # an ensemble would go on with what was recalled
                self._fleet.recall(lane, state.attempt, state.chunk)

    # -- trials --------------------------------------------------------------------------------

    def _assign(self) -> bool:
        """Give free lanes trials, unless a durable reader is behind; true where any got one."""
        if not self._trials or not self._free or any(r.behind() for r in self._durable):
            return False
        now = self._now()
        lanes: list[int] = []
        began: list[LaneState] = []
        records: list[dict[str, Any]] = []
        while self._free and self._trials:
            lane = self._free.pop()
            trial = self._trials.take(lane, self._fleet.live(lane))
            assert trial is not None  # the queue is not empty
            name = trial.id
            number = self._trials.number(trial)
            attempt = self._next_attempt.get(name, 0) if number is None else number
            self._next_attempt[name] = attempt + 1
            record = {} if self._record is None else self._record(trial, attempt)
            kind = self._kinds.setdefault((trial[:2], bool(record)), len(self._kinds))
            state = self._lanes[lane] = LaneState(
                trial, attempt, self._new_rule(), kind, now, self._name
            )
            if self._delayed is not None:
                state.ahead = Ahead()
            self._scheduler.begins(lane, now)
            lanes.append(lane)
            began.append(state)
            records.append({**record, **self._folder})
            if self._starts.ask(state):
                records[-1][TWICE] = True
        trials, attempts = [state.trial for state in began], [state.attempt for state in began]
        self._emit(AttemptsBegan(time=now, lanes=lanes, trials=trials, attempts=attempts))
        self._fleet.begin(
            lanes,
            attempts,
            trials,
            [self._config.max_steps] * len(lanes),
            final_observation=self._config.final_observation,
            record=records,
        )
        return True

    def _new_rule(self) -> ChunkRule:
        return self._make_rule() if self._shared_rule is None else self._rule

    # -- readers -------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _emit(self, event: Event) -> None:
        for reader in self._readers:
            reader.on(event)

    def _tell(self) -> None:
        for event in self._turn.take(self._now()):
            self._emit(event)
