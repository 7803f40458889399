"""Which lane makes which attempt at which trial, and what becomes of attempts that are lost."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import AttemptFailed
from hocket.engine.batches import Batches
from hocket.engine.chunk_rules import ChunkRule
from hocket.engine.config import EngineConfig
from hocket.engine.delay import HeldLanes
from hocket.engine.dispatch import PendingBatch
from hocket.engine.inferring.suspects import Suspects
from hocket.engine.starts import StartChecks
from hocket.engine.trials import LaneState, Task, TrialQueue
from hocket.errors import EnvError

Record = Callable[[Trial, int], Mapping[str, Any]]
"""What the sinks are asked for in an attempt, by trial and number."""


class Lost(NamedTuple):
    """What becomes of an attempt that was lost."""

    event: AttemptFailed
    episode: Episode | None
    """How the trial ends, where its retries are used up."""


class Attempts:
    """The attempts of a run: one in each lane, and those that ended and are not sealed yet."""

    def __init__(
        self,
        batches: Batches,
        config: EngineConfig,
        make_rule: Callable[[], ChunkRule],
        record: Record | None,
    ) -> None:
        self.lanes: dict[int, LaneState] = {}
        """Lanes that have an attempt."""
        self.free: list[int] = []
        self.has_built = False
        """An env was built and reset."""
        self.suspects = Suspects()
        self.starts = StartChecks(is_on=config.compares_starts)
        self._batches = batches
        self._inference = batches.inference
        self._config = config
        self._make_rule = make_rule
        self._record = record
        self._name = secrets.token_hex(8)
        """Names the run in sessions: others may ask the same policy for the same trials."""
        self._trials = TrialQueue()
        self._next_attempt: dict[str, int] = {}
        self._held = HeldLanes()
        self._sealing: dict[int, Episode] = {}
        self._failures: Counter[str] = Counter()
        self._kinds: dict[tuple[Task, bool], int] = {}

    def plan(self, trials: TrialQueue, attempts: Mapping[str, int]) -> None:
        """Take the trials of a run, and the numbers of the next attempts at those that had some."""
        self._trials = trials
        self._next_attempt = dict(attempts)

    @property
    def are_under_way(self) -> bool:
        """True if some lane has an attempt, or something of an ended one is still awaited."""
        return bool(self.lanes or self._sealing or self._held)

    # -- beginning -----------------------------------------------------------------------------

    def begin(
        self, live: Callable[[int], Task | None], now: float
    ) -> tuple[list[int], list[LaneState], list[dict[str, Any]]]:
        """Give free lanes trials; `live` is the task that a lane's worker has built. Returns the
        lanes, their attempts, and what is to be recorded of each."""
        lanes: list[int] = []
        began: list[LaneState] = []
        records: list[dict[str, Any]] = []
        while self.free and self._trials:
            lane = self.free.pop()
            trial = self._trials.take(lane, live(lane))
            assert trial is not None  # the queue is not empty
            number = self._trials.number(trial)
            attempt = self._next_attempt.get(trial.id, 0) if number is None else number
            self._next_attempt[trial.id] = attempt + 1
            record = {} if self._record is None else dict(self._record(trial, attempt))
            kind = self._kinds.setdefault((trial[:2], bool(record)), len(self._kinds))
            state = LaneState(trial, attempt, self._make_rule(), kind, now, self._name)
            self.lanes[lane] = state
            self._batches.delay.begins(lane)
            self._batches.scheduler.begins(lane, now)
            lanes.append(lane)
            began.append(state)
            records.append(record)
        return lanes, began, records

    # -- ends ----------------------------------------------------------------------------------

    def end(self, lane: int, episode: Episode) -> None:
        """The lane's episode ended; what it recorded is not sealed yet."""
        self._release(lane)
        self.suspects.acquit(episode.trial.id)
        self.set_free(lane)
        self._sealing[lane] = episode

    def seal(self, lane: int, attempt: int) -> Episode | None:
        """The ended episode of a lane that is sealed now; None where nobody waits for it."""
        episode = self._sealing.get(lane)
        if episode is None or episode.attempt != attempt:
            return None
        return self._sealing.pop(lane)

    def lose_sealing(self, lane: int, error: str, now: float) -> Lost | None:
        """What a lane's ended episode recorded is lost: it never happened."""
        episode = self._sealing.pop(lane, None)
        if episode is None:
            return None
        return self._retry(lane, episode.trial, episode.attempt, error, now)

    def lose(self, lane: int, error: str, now: float, *, spends: bool = True) -> Lost:
        """Give an attempt up; its trial runs again while it has retries left."""
        state = self._release(lane)
        return self._retry(
            lane, state.trial, state.attempt, error, now, steps=state.steps, spends=spends
        )

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
    ) -> Lost:
        gives_back, again = self._config.gives_back, not spends
        if not gives_back:
            self._failures[trial.id] += spends
            again = not spends or self._failures[trial.id] <= self._config.retries
            if not again and not self.has_built:
                raise EnvError(
                    f"No env could be built and reset, in {attempt + 1} attempts.\n{error}"
                )
        event = AttemptFailed(
            time=now, lane=lane, trial=trial, attempt=attempt, error=error, again=again
        )
        if gives_back:
            return Lost(event, None)
        if again:
            self._trials.give_back(trial)
            return Lost(event, None)
        return Lost(event, Episode(trial, attempt, Outcome.ERROR, steps, 0.0, error=error))

    def _release(self, lane: int) -> LaneState:
        """Take the lane's attempt from it; nobody awaits the lane any more."""
        self._batches.scheduler.leave(lane)
        state = self.lanes.pop(lane)
        self.starts.release(state)
        if self._batches.delay.goes_on and self._batches.is_under_way(state):
            self._held.hold(lane, state)
        else:
            self._inference.end_session(state.session)
        return state

    # -- lanes ---------------------------------------------------------------------------------

    def set_free(self, lane: int) -> None:
        """Let the lane take another trial, once the policy reads nothing of its last one."""
        if lane in self._held:
            self._held.set_free(lane, is_free=True)
        elif lane not in self.lanes:
            self.free.append(lane)

    def withdraw(self, lanes: Sequence[int]) -> None:
        """Give these lanes no trial before their workers are up again."""
        self.free = [lane for lane in self.free if lane not in lanes]
        for lane in lanes:
            if lane in self._held:
                self._held.set_free(lane, is_free=False)

    def answered(self, batch: PendingBatch) -> None:
        """Let lanes go that were held: the policy has answered for attempts that were over."""
        for lane, state, is_free in self._held.answered(batch):
            self._inference.end_session(state.session)
            if is_free:
                self.free.append(lane)
