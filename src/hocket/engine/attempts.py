"""Which lane makes which attempt at which trial, and what becomes of attempts that are lost."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import AttemptFailed
from hocket.core.specs import EnvSpec
from hocket.core.wire import TWICE
from hocket.engine.batches import Batches
from hocket.engine.chunk_rules import ChunkRule
from hocket.engine.config import EngineConfig
from hocket.engine.dispatch import Dispatch, PendingBatch
from hocket.engine.inferring.policy_thread import account
from hocket.engine.inferring.suspects import Suspects
from hocket.engine.trials import LaneState, Task, TrialQueue
from hocket.errors import EnvError, PolicyHungError
from hocket.system.text import counted
from hocket.workers.fleet import Fleet
from hocket.workers.notices import LaneFailed, LaneSealed, Remarked

Record = Callable[[Trial, int], Mapping[str, Any]]
"""What the sinks are asked for in an attempt, by trial and number."""
MOST_ASKED = 2
"""Attempts of a suite that are reset twice, where the first is lost before it tells: an env that
cannot be reset twice in a row costs no more."""


class Lost(NamedTuple):
    """What becomes of an attempt that was lost."""

    event: AttemptFailed
    episode: Episode | None
    """How the trial ends, where its retries are used up."""


class StartChecks:
    """Asks the first attempt of each suite to be reset twice, or the next where that is lost, to
    see whether an env starts as its seed says."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._asked: dict[str, LaneState | None] = {}
        """By suite: the attempt that was asked, None once it has told."""
        self._times: Counter[str] = Counter()

    def ask(self, state: LaneState) -> bool:
        """True if an attempt that is to begin is to be reset twice."""
        suite = state.trial.suite
        if not self._is_on or suite in self._asked or self._times[suite] >= MOST_ASKED:
            return False
        self._asked[suite] = state
        self._times[suite] += 1
        return True

    def hear(self, state: LaneState) -> bool:
        """Take note that an attempt has told; false where it was not the one that was asked."""
        is_asked = self._asked.get(state.trial.suite) is state
        if is_asked:
            self._asked[state.trial.suite] = None
        return is_asked

    def release(self, state: LaneState) -> None:
        """Take note that an attempt is over: if it has not told, another is asked."""
        if self._asked.get(state.trial.suite) is state:
            del self._asked[state.trial.suite]


class Attempts:
    """The attempts of a run: one in each lane, and those that ended and are not sealed yet."""

    def __init__(
        self,
        fleet: Fleet,
        batches: Batches,
        config: EngineConfig,
        make_rule: Callable[[], ChunkRule],
        record: Record | None,
        folder: str | None,
    ) -> None:
        self.lanes: dict[int, LaneState] = {}
        """Lanes that have an attempt."""
        self.free: list[int] = []
        self.specs: dict[Task, EnvSpec] = {}
        """What envs turned out to be: those that were built and reset."""
        self.suspects = Suspects()
        self.starts = StartChecks(is_on=config.compares_starts)
        self._fleet = fleet
        self._batches = batches
        self._inference = batches.inference
        self._config = config
        self._make_rule = make_rule
        self._record = record
        self._folder = {} if folder is None else {"folder": folder}
        self._name = secrets.token_hex(8)
        """Names the run in sessions: others may ask the same policy for the same trials."""
        self._trials = TrialQueue()
        self._next_attempt: dict[str, int] = {}
        self._held: dict[int, tuple[LaneState, bool]] = {}
        """Lanes whose attempts are over while the policy still reads what they saw, each with True
        if its worker waits for another attempt. They begin nothing before it has answered: their
        memory is not written, and sessions end after their last call."""
        self._sealing: dict[int, Episode] = {}
        self._failures: Counter[str] = Counter()
        self._kinds: dict[tuple[Task, bool], int] = {}
        self._remarked: set[str] = set()

    def plan(self, trials: TrialQueue, attempts: Mapping[str, int]) -> None:
        """Take the trials of a run, and the numbers of the next attempts at those that had some."""
        self._trials = trials
        self._next_attempt = dict(attempts)

    @property
    def are_under_way(self) -> bool:
        """True if some lane has an attempt, or something of an ended one is still awaited."""
        return bool(self.lanes or self._sealing or self._held)

    # -- beginning -----------------------------------------------------------------------------

    def begin(self, now: float) -> tuple[list[int], list[LaneState], list[dict[str, Any]]]:
        """Give free lanes trials. Returns the lanes, their attempts, and what is to be recorded of
        each."""
        lanes: list[int] = []
        began: list[LaneState] = []
        records: list[dict[str, Any]] = []
        while self.free and self._trials:
            lane = self.free.pop()
            trial = self._trials.take(lane, self._fleet.live(lane))
            assert trial is not None  # the queue is not empty
            number = self._trials.number(trial)
            attempt = self._next_attempt.get(trial.id, 0) if number is None else number
            self._next_attempt[trial.id] = attempt + 1
            record = {} if self._record is None else dict(self._record(trial, attempt))
            kind = self._kinds.setdefault((trial[:2], bool(record)), len(self._kinds))
            state = LaneState(trial, attempt, self._make_rule(), kind, now, self._name)
            record.update(self._folder)
            if self.starts.ask(state):
                record[TWICE] = True
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

    def seal(self, notice: LaneSealed) -> Episode | None:
        """The ended episode of a lane that is sealed now; None where nobody waits for it."""
        episode = self._sealing.get(notice.lane)
        if episode is None or episode.attempt != notice.attempt:
            return None
        return self._sealing.pop(notice.lane)._replace(
            files=tuple(notice.files), progress=notice.progress, told=notice.told
        )

    def is_news(self, notice: Remarked) -> bool:
        """Keep a remark for the attempt's episode; true the first time that it is made of any."""
        state = self.lanes.get(notice.lane)
        if state is None or state.attempt != notice.attempt:
            return False
        state.remarks += (notice.text,)
        is_first = notice.text not in self._remarked
        self._remarked.add(notice.text)
        return is_first

    def _release(self, lane: int) -> LaneState:
        """Take the lane's attempt from it; nobody awaits the lane any more."""
        self._batches.scheduler.leave(lane)
        state = self.lanes.pop(lane)
        self.starts.release(state)
        if self._batches.delay.goes_on and self._batches.is_under_way(state):
            self._held[lane] = (state, False)
        else:
            self._inference.end_session(state.session)
        return state

    def recall(self, is_stale: Callable[[str], bool]) -> None:
        """Stop chunks whose source is gone: their lanes ask again, with what they see then."""
        for lane, state in self.lanes.items():
            if state.source and is_stale(state.source):
                state.source = ""
                state.rule = self._make_rule()  # an ensemble would go on with what was recalled
                self._fleet.recall(lane, state.attempt, state.chunk)

    # -- faults --------------------------------------------------------------------------------

    def failed(self, notice: LaneFailed, now: float) -> list[Lost]:
        """Lose what a lane had: its attempt, or what an ended one recorded, which then never
        happened."""
        lane, lost = notice.lane, list[Lost]()
        if notice.gone or notice.sealing:
            ended = self._sealing.pop(lane, None)
            if ended is not None:
                error = notice.account
                never = Episode(ended.trial, ended.attempt, Outcome.ERROR, 0, 0.0, error=error)
                lost.append(self._retry(lane, never, now))
        state = self.lanes.get(lane)
        is_its_own = state is not None and state.attempt == notice.attempt and not notice.sealing
        if state is not None and (notice.gone or is_its_own):
            lost.append(self._lose(lane, notice.account, now, spends=notice.spends))
            if not notice.gone:
                self.set_free(lane)
        return lost

    def fail_rows(self, dispatch: Dispatch, now: float) -> list[Lost]:
        """Lose the attempts for which the policy raised. Where nobody knows for which of them, all
        are suspects."""
        blameless = dispatch.answer.blameless
        is_hung = any(isinstance(error, PolicyHungError) for *_, error in dispatch.failed)
        if blameless and not is_hung:
            self.suspects.add(state.trial.id for _, state, _ in dispatch.failed)
        lost = []
        for lane, state, error in dispatch.failed:
            lost.append(self._give_up(lane, account(error), now, spends=not blameless))
            if self._inference.has_sessions and not blameless and len(dispatch.batch.lanes) == 1:
                cleared = self.suspects.convict(state.trial.id)
                for other in self.lanes.values():
                    if other.trial.id in cleared:
                        other.queue = self._batches.together(other.queue)
        return lost

    def begin_anew(self, now: float) -> list[Lost]:
        """Lose all attempts: the policy was started anew, and what it kept for them is gone."""
        lanes = list(self.lanes) if self._inference.has_sessions else []
        return [
            self._give_up(lane, "The policy was started anew.", now, spends=False) for lane in lanes
        ]

    def _give_up(self, lane: int, error: str, now: float, *, spends: bool) -> Lost:
        """Lose the attempt of a lane whose worker is well: another trial may begin there."""
        attempt = self.lanes[lane].attempt
        lost = self._lose(lane, error, now, spends=spends)
        self._fleet.discard([lane], [attempt])
        self.set_free(lane)
        return lost

    def _lose(self, lane: int, error: str, now: float, *, spends: bool) -> Lost:
        """Give an attempt up; its trial runs again while it has retries left."""
        state = self._release(lane)
        lost = Episode(state.trial, state.attempt, Outcome.ERROR, state.steps, 0.0, error=error)
        lost = lost._replace(remarks=state.remarks)
        return self._retry(lane, lost, now, spends=spends)

    def _retry(self, lane: int, lost: Episode, now: float, *, spends: bool = True) -> Lost:
        """Plan a trial again whose attempt was lost; where its retries are used up it ends so."""
        trial, error = lost.trial, lost.error or ""
        gives_back, again = self._config.gives_back, not spends
        if not gives_back:
            self._failures[trial.id] += spends
            again = not spends or self._failures[trial.id] <= self._config.retries
            if not again and not self.specs:
                raise EnvError(
                    f"No episode could begin, in {counted(lost.attempt + 1, 'attempt')}.\n{error}"
                )
            if again:
                self._trials.give_back(trial)
        event = AttemptFailed(
            time=now, lane=lane, trial=trial, attempt=lost.attempt, error=error, again=again
        )
        return Lost(event, None if gives_back or again else lost)

    # -- lanes ---------------------------------------------------------------------------------

    def set_free(self, lane: int) -> None:
        """Let the lane take another trial, once the policy reads nothing of its last one."""
        if lane in self._held:
            self._held[lane] = (self._held[lane][0], True)
        elif lane not in self.lanes:
            self.free.append(lane)

    def withdraw(self, lanes: Sequence[int]) -> None:
        """Give these lanes no trial before their workers are up again."""
        self.free = [lane for lane in self.free if lane not in lanes]
        for lane in self._held.keys() & set(lanes):
            self._held[lane] = (self._held[lane][0], False)

    def answered(self, batch: PendingBatch) -> None:
        """Let lanes go that were held: the policy has answered for attempts that were over."""
        for lane, state in zip(batch.lanes, batch.states, strict=True):
            held, is_free = self._held.get(lane, (None, False))
            if held is state:
                del self._held[lane]
                self._inference.end_session(state.session)
                if is_free:
                    self.free.append(lane)
