"""The one loop that joins fleet, scheduler, policy and readers.

    trials -> begin -> Ready -> scheduler -> batch -> inference -> chunks -> execute -> Executed -+
                         ^                                                                        |
                         +------------------------------------------------------------------------+

The engine owns what it knows of each lane, and nothing else does. A turn takes what workers and
policy have said, answers it, and lets batches go that are due; it waits only in `Fleet.poll`. What
readers are told is collected over a turn, so that a thousand lanes make a handful of events.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hocket.contracts import Binds, Durable, Policy, Reader
from hocket.data import (
    Array,
    Chunk,
    EnvSpec,
    Episode,
    Observation,
    Outcome,
    Row,
    Trial,
    noise_seed,
    signature,
)
from hocket.errors import EnvError, HocketError, WorkerFailed
from hocket.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    EpisodesEnded,
    EpisodesSealed,
    Event,
    LanesReady,
    RunEnded,
    RunStarted,
    SpecLearned,
    WorkerChanged,
)
from hocket.fleet import notices
from hocket.fleet.fleet import Fleet
from hocket.inference import Answered, Inference, Job, WarmedUp
from hocket.replay import ChunkRule
from hocket.scheduler import BatchPlan, Scheduler
from hocket.trials import TrialQueue
from hocket.wire import END_JUDGED, END_OBSERVED, END_SUCCESS, END_TERMINATED, END_TRUNCATED

_LONGEST_WAIT_S = 0.1
"""Between two turns, so that the fleet's watchdog looks often enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How attempts are made."""

    retries: int = 2
    """More attempts at a trial whose attempt was lost to a fault."""
    max_steps: int | None = None
    """Ends every episode here; None leaves it to the task."""
    pad: bool = False
    """Fill every batch to the policy's `max_batch`, so that all have one shape."""
    keep_observations: bool = False
    """Tell readers what each chunk was inferred from, and what was seen when an episode ended."""


class Lane:
    """What the engine knows of one lane's attempt."""

    __slots__ = (
        "action_size",
        "attempt",
        "began",
        "chunk",
        "kind",
        "prompt",
        "queue",
        "ready_at",
        "rule",
        "session",
        "steps",
        "total",
        "trial",
    )

    def __init__(
        self, trial: Trial, attempt: int, rule: ChunkRule, kind: Hashable, began: float
    ) -> None:
        self.trial = trial
        self.attempt = attempt
        self.rule = rule
        self.kind = kind
        self.began = began
        self.session = f"{trial.id}@{attempt}"
        self.chunk = 0
        self.steps = 0
        self.total = 0.0
        self.prompt = ""
        self.queue: Hashable = None
        self.action_size = 0
        self.ready_at = 0.0


class Engine:
    """Runs trials to their end. One thread calls `run`; `stop` may come from anywhere."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        policy: Policy,
        inference: Inference,
        scheduler: Scheduler,
        make_rule: Callable[[], ChunkRule],
        config: EngineConfig,
        readers: Sequence[Reader] = (),
        fits: Callable[[EnvSpec], None] = lambda _: None,
        record: Callable[[Trial, int], Mapping[str, Any]] = lambda _, __: {},
    ) -> None:
        self._fleet = fleet
        self._policy = policy
        self._inference = inference
        self._scheduler = scheduler
        self._make_rule = make_rule
        self._config = config
        self._readers = tuple(readers)
        self._durable = [reader for reader in readers if isinstance(reader, Durable)]
        self._fits = fits
        self._record = record

        self._trials = TrialQueue()
        self._lanes: dict[int, Lane] = {}
        self._free: list[int] = []
        self._sealing: dict[int, Episode] = {}
        self._next_attempt: dict[str, int] = {}
        self._failures: Counter[str] = Counter()
        self._specs: dict[tuple[str, str], EnvSpec] = {}
        self._live: dict[int, tuple[str, str]] = {}
        self._to_bind: list[EnvSpec] = []
        self._cold: dict[Hashable, int] = {}
        self._warm: set[Hashable] = set()
        self._is_warming = False
        self._flying: dict[int, tuple[tuple[int, ...], list[float]]] = {}
        self._batches = 0
        self._start = time.perf_counter()
        self._is_stopping = False
        self._said: _Said = _Said()

    def stop(self) -> None:
        """End the run soon, as Ctrl-C does: what has ended is kept, the rest is left."""
        self._is_stopping = True
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
        """Run `trials` to the last; True when none is left.

        `done` are episodes of an earlier part of the run, and `attempts` the numbers of the next
        attempts at trials that have had some.
        """
        self._trials = trials
        self._next_attempt = dict(attempts or {})
        self._start = time.perf_counter()
        lanes = self._fleet.config.lanes
        self._emit(
            RunStarted(
                trials=planned, done=done, lanes=lanes, cores=cores, policy=self._policy.spec
            )
        )
        try:
            self._inference.start(self._fleet.wake)
            self._fleet.start()
            while not self._is_stopping and (self._trials or self._lanes or self._sealing):
                self._turn()
        except KeyboardInterrupt:
            self._is_stopping = True
        complete = not (self._trials or self._lanes or self._sealing)
        self._emit(RunEnded(time=self._now(), complete=complete, notes={}))
        return complete

    # -- one turn ------------------------------------------------------------------------------

    def _turn(self) -> None:
        for notice in self._fleet.poll(self._patience()):
            self._hear(notice, self._now())
        for answer in self._inference.answers():
            self._take(answer, self._now())
        self._tell()
        self._assign()
        self._leave()

    def _patience(self) -> float:
        now = self._now()
        wake_at = self._scheduler.wake_at(now)
        if wake_at is None:
            return _LONGEST_WAIT_S
        return min(max(0.0, wake_at - now), _LONGEST_WAIT_S)

    def _hear(self, notice: notices.Notice, now: float) -> None:
        if isinstance(notice, notices.LanesExecuted):
            self._executed(notice, now)
        elif isinstance(notice, notices.LanesReady):
            self._begun(notice, now)
        elif isinstance(notice, notices.LaneSealed):
            self._sealed(notice)
        elif isinstance(notice, notices.LanesUp):
            self._free.extend(lane for lane in notice.lanes if lane not in self._lanes)
            self._emit(WorkerChanged(time=now, lanes=notice.lanes, state="up"))
        elif isinstance(notice, notices.LaneFailed):
            self._failed(notice, now)
        else:
            for lane in notice.lanes:
                if lane in self._free:
                    self._free.remove(lane)
                self._live.pop(lane, None)
            self._emit(WorkerChanged(time=now, lanes=notice.lanes, state="recycled"))

    # -- what workers say ----------------------------------------------------------------------

    def _begun(self, notice: notices.LanesReady, now: float) -> None:
        for lane, attempt, prompt in zip(
            notice.lanes, notice.attempts, notice.prompts, strict=True
        ):
            state = self._lanes.get(lane)
            if state is None or state.attempt != attempt:
                continue
            task = (state.trial.suite, state.trial.task)
            if notice.spec is not None and task not in self._specs:
                self._learn(task, notice.spec, now)
            self._live[lane] = task
            spec = self._specs[task]
            state.prompt = prompt or spec.task.prompt
            state.action_size = spec.action.size
            state.queue = (signature(self._fleet.arrays(lane)), state.action_size)
            if state.queue not in self._warm:
                self._cold.setdefault(state.queue, lane)
            self._ready(lane, state, now, None)

    def _ready(self, lane: int, state: Lane, now: float, busy_s: float | None) -> None:
        state.ready_at = now
        self._scheduler.ready(lane, state.queue, now, busy_s)
        self._said.ready.append((lane, state.trial, state.attempt, state.chunk))

    def _learn(self, task: tuple[str, str], spec: EnvSpec, now: float) -> None:
        self._specs[task] = spec
        self._fits(spec)
        if isinstance(self._policy, Binds):
            self._to_bind.append(spec)
        self._emit(SpecLearned(time=now, suite=task[0], spec=spec))

    def _executed(self, notice: notices.LanesExecuted, now: float) -> None:
        for i, lane in enumerate(notice.lanes):
            state = self._lanes.get(lane)
            if state is None or state.attempt != notice.attempts[i]:
                continue
            rewards = notice.rewards[i]
            end = notice.ends[i]
            state.steps += notice.steps[i]
            state.total += float(rewards.sum())
            self._said.executed.append(
                (
                    lane,
                    state.trial,
                    state.attempt,
                    notice.chunks[i],
                    notice.steps[i],
                    rewards,
                    bool(end & END_TERMINATED),
                    bool(end & END_TRUNCATED),
                    notice.busy_s[i],
                    notice.observe_s[i],
                    self._final(lane) if end & END_OBSERVED else None,
                )
            )
            state.chunk += 1
            if end:
                self._end(lane, state, end, now)
            else:
                self._ready(lane, state, now, notice.busy_s[i])

    def _final(self, lane: int) -> Observation:
        # The lane is free at once, and its next episode would write into the same memory.
        return {key: view.copy() for key, view in self._fleet.arrays(lane).items()}

    def _end(self, lane: int, state: Lane, end: int, now: float) -> None:
        outcome = Outcome.FINISHED
        if end & END_JUDGED:
            outcome = Outcome.SUCCESS if end & END_SUCCESS else Outcome.FAILURE
        episode = Episode(
            trial=state.trial,
            attempt=state.attempt,
            outcome=outcome,
            steps=state.steps,
            total_reward=state.total,
            terminated=bool(end & END_TERMINATED),
            truncated=bool(end & END_TRUNCATED),
            chunks=state.chunk,
            seconds=now - state.began,
        )
        self._scheduler.leave(lane)
        self._inference.end_session(state.session)
        del self._lanes[lane]
        self._free.append(lane)
        self._said.ended.append((lane, episode))
        self._sealing[lane] = episode

    def _sealed(self, notice: notices.LaneSealed) -> None:
        episode = self._sealing.get(notice.lane)
        if episode is not None and episode.attempt == notice.attempt:
            del self._sealing[notice.lane]
            self._said.sealed.append(replace(episode, files=tuple(notice.files)))

    # -- faults --------------------------------------------------------------------------------

    def _failed(self, notice: notices.LaneFailed, now: float) -> None:
        lane = notice.lane
        text = "\n".join(part for part in (notice.message, notice.traceback) if part)
        if notice.kind == "WorkerStart":
            raise WorkerFailed(f"No worker could be started for lane {lane}: {text}")
        if notice.gone:
            if lane in self._free:
                self._free.remove(lane)
            self._live.pop(lane, None)
            self._emit(WorkerChanged(time=now, lanes=[lane], state="lost", reason=notice.message))
        if lane in self._sealing and (notice.gone or notice.sealing):
            # The episode ended, but what it recorded is lost: it never happened.
            episode = self._sealing.pop(lane)
            self._retry(lane, episode.trial, episode.attempt, text, now, steps=episode.steps)
        state = self._lanes.get(lane)
        is_its_own = state is not None and state.attempt == notice.attempt and not notice.sealing
        if state is not None and (notice.gone or is_its_own):
            self._lose(lane, f"{notice.kind}: {text}", now)
            if not notice.gone:
                self._free.append(lane)

    def _lose(self, lane: int, error: str, now: float) -> None:
        """An attempt is lost; its trial runs again while it has retries left."""
        state = self._lanes.pop(lane)
        self._scheduler.leave(lane)
        self._inference.end_session(state.session)
        self._retry(lane, state.trial, state.attempt, error, now, state.steps)

    def _retry(
        self,
        lane: int,
        trial: Trial,
        attempt: int,
        error: str,
        now: float,
        steps: int,
    ) -> None:
        self._failures[trial.id] += 1
        again = self._failures[trial.id] <= self._config.retries
        if not again and not self._specs:
            raise EnvError(f"No env could be built and reset, in {attempt + 1} attempts. {error}")
        self._tell()
        self._emit(
            AttemptFailed(
                time=now, lane=lane, trial=trial, attempt=attempt, error=error, again=again
            )
        )
        if again:
            self._trials.give_back(trial)
            return
        episode = Episode(
            trial=trial,
            attempt=attempt,
            outcome=Outcome.ERROR,
            steps=steps,
            total_reward=0.0,
            error=error,
        )
        self._said.ended.append((lane, episode))
        self._said.sealed.append(episode)

    # -- batches -------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Let batches go that are due; a policy is bound and warmed up while it is idle."""
        if self._is_warming or ((self._to_bind or self._cold) and self._flying):
            return
        for spec in self._to_bind:
            self._policy.bind(spec)  # type: ignore[attr-defined]
        self._to_bind.clear()
        if self._cold:
            self._warm_up()
            return
        now = self._now()
        while (plan := self._scheduler.next_batch(now)) is not None:
            self._submit(plan)

    def _warm_up(self) -> None:
        queue, lane = self._cold.popitem()
        state = self._lanes.get(lane)
        if state is None or state.queue != queue:
            # That lane is lost; the next one of this signature asks again.
            return
        largest = min(self._policy.spec.max_batch, self._fleet.config.lanes)
        sizes = sorted({min(1 << power, largest) for power in range(largest.bit_length() + 1)})
        pad_to = self._pad_to()
        self._is_warming = True
        self._inference.warm_up(
            Job(
                number=-1,
                queue=queue,
                rows=(self._row(state),),
                views=[self._fleet.arrays(lane)],
                action_size=state.action_size,
                pad_to=pad_to,
            ),
            [1] if pad_to else sizes,
        )

    def _submit(self, plan: BatchPlan) -> None:
        lanes = plan.lanes
        states = [self._lanes[lane] for lane in lanes]
        self._batches += 1
        self._flying[self._batches] = (lanes, [state.ready_at for state in states])
        self._inference.submit(
            Job(
                number=self._batches,
                queue=plan.queue,
                rows=tuple(self._row(state) for state in states),
                views=[self._fleet.arrays(lane) for lane in lanes],
                action_size=states[0].action_size,
                pad_to=self._pad_to(),
                keep=self._config.keep_observations,
            )
        )

    def _pad_to(self) -> int:
        return self._policy.spec.max_batch if self._config.pad else 0

    def _row(self, state: Lane) -> Row:
        return Row(
            trial=state.trial,
            attempt=state.attempt,
            chunk=state.chunk,
            noise_seed=noise_seed(state.trial, state.chunk),
            prompt=state.prompt,
            session=state.session,
        )

    def _take(self, answer: Answered | WarmedUp, now: float) -> None:
        if isinstance(answer, WarmedUp):
            # Rows that cannot be answered err one by one, each with its own trial's name.
            self._is_warming = False
            self._warm.add(answer.queue)
            self._cold.pop(answer.queue, None)
            self._scheduler.seed_latency(answer.latencies)
            return
        job = answer.job
        lanes, ready = self._flying.pop(job.number)
        size = max(job.pad_to, len(lanes))
        self._scheduler.inferred(len(lanes), answer.ended - answer.began, now)
        delivered: list[Chunk | None] = []
        sent: list[tuple[int, Lane, Array]] = []
        for lane, row, chunk, error in zip(
            lanes, job.rows, answer.chunks, answer.errors, strict=True
        ):
            state = self._lanes.get(lane)
            is_current = state is not None and state.session == row.session
            delivered.append(chunk if is_current else None)
            if state is None or not is_current:
                continue
            try:
                if chunk is None:
                    raise error or HocketError("The policy gave no answer.")
                sent.append((lane, state, state.rule.take(chunk.actions, state.steps)))
            except Exception as exc:  # noqa: BLE001 - an error of a user's policy costs its row
                self._lose(lane, f"{type(exc).__name__}: {exc}", now)
                self._fleet.discard([lane], [row.attempt])
                self._free.append(lane)
        self._execute(sent, now)
        self._emit(
            BatchInferred(
                time=now,
                batch=job.number,
                began=answer.began - self._start,
                ended=answer.ended - self._start,
                lanes=lanes,
                trials=[row.trial for row in job.rows],
                attempts=[row.attempt for row in job.rows],
                chunks=[row.chunk for row in job.rows],
                delivered=delivered,
                ready=ready,
                size=size,
                observations=answer.observations,
            )
        )

    def _execute(self, sent: Sequence[tuple[int, Lane, Array]], now: float) -> None:
        if not sent:
            return
        self._fleet.execute(
            [lane for lane, _, _ in sent],
            [state.attempt for _, state, _ in sent],
            [state.chunk for _, state, _ in sent],
            [actions for _, _, actions in sent],
        )
        by_kind: dict[Hashable, list[int]] = {}
        for lane, state, _ in sent:
            by_kind.setdefault(state.kind, []).append(lane)
        for kind, lanes in by_kind.items():
            self._scheduler.executing(lanes, kind, now)

    # -- trials --------------------------------------------------------------------------------

    def _assign(self) -> None:
        if not self._free or not self._trials or any(r.behind() for r in self._durable):
            return
        now = self._now()
        began: list[tuple[int, Lane]] = []
        while self._free:
            lane = self._free.pop()
            trial = self._trials.take(lane, self._live.get(lane))
            if trial is None:
                self._free.append(lane)
                break
            attempt = self._next_attempt.get(trial.id, 0)
            self._next_attempt[trial.id] = attempt + 1
            kind = (trial.suite, trial.task, bool(self._record(trial, attempt)))
            self._lanes[lane] = Lane(trial, attempt, self._make_rule(), kind, now)
            began.append((lane, self._lanes[lane]))
        lanes = [lane for lane, _ in began]
        trials = [state.trial for _, state in began]
        attempts = [state.attempt for _, state in began]
        self._emit(AttemptsBegan(time=now, lanes=lanes, trials=trials, attempts=attempts))
        self._fleet.begin(
            lanes,
            attempts,
            trials,
            [self._config.max_steps] * len(lanes),
            final_observation=self._config.keep_observations,
            record=[self._record(t, a) for t, a in zip(trials, attempts, strict=True)],
        )

    # -- readers -------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _emit(self, event: Event) -> None:
        for reader in self._readers:
            reader.on(event)

    def _tell(self) -> None:
        """Everything collected in this turn, in the order in which it must be heard."""
        said, self._said = self._said, _Said()
        for event in said.events(self._now()):
            self._emit(event)


class _Said:
    """What a turn has to tell, row by row, until it becomes events."""

    def __init__(self) -> None:
        self.executed: list[
            tuple[int, Trial, int, int, int, Array, bool, bool, float, float, Observation | None]
        ] = []
        self.ready: list[tuple[int, Trial, int, int]] = []
        self.ended: list[tuple[int, Episode]] = []
        self.sealed: list[Episode] = []

    def events(self, now: float) -> list[Event]:
        events: list[Event] = []
        if self.executed:
            columns = tuple(zip(*self.executed, strict=True))
            events.append(
                ChunksExecuted(
                    time=now,
                    lanes=columns[0],
                    trials=columns[1],
                    attempts=columns[2],
                    chunks=columns[3],
                    steps=columns[4],
                    rewards=columns[5],
                    terminated=columns[6],
                    truncated=columns[7],
                    busy=columns[8],
                    observed=columns[9],
                    final=columns[10],
                )
            )
        if self.ready:
            lanes, trials, attempts, chunks = zip(*self.ready, strict=True)
            events.append(
                LanesReady(time=now, lanes=lanes, trials=trials, attempts=attempts, chunks=chunks)
            )
        if self.ended:
            ended_lanes, episodes = zip(*self.ended, strict=True)
            events.append(EpisodesEnded(time=now, lanes=ended_lanes, episodes=episodes))
        if self.sealed:
            events.append(EpisodesSealed(time=now, episodes=self.sealed))
        return events
