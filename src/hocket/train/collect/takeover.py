"""A policy that acts until an expert takes over, in states that the policy reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hocket.core.contracts.policy import Binds, Policy, Sessions
from hocket.core.data import INTERVENTION, Actions, Array, Batch, Row
from hocket.core.specs import EnvSpec, PolicySpec
from hocket.engine.chunk_rules import check_answer
from hocket.errors import SpecMismatchError


@dataclass(slots=True, eq=False)
class _Attempt:
    """What is kept of an attempt."""

    left: Array
    """Actions that were decided on and not yet given, `[n, A]`."""
    is_expert: bool = False
    """True from where the expert took over, to the end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TakeoverRule:
    """When the expert takes over."""

    rate: float
    """How likely at each decision of the learner."""
    recorded: Mapping[str, Array] = field(default_factory=dict)
    """Actions `[N, A]` that lead to states of failed episodes, by trial: they are done again, to a
    step drawn from their first half, from which on the expert acts."""


class Takeover:
    """Decisions of `learner`, until the expert takes over; each answer says who made it."""

    def __init__(self, learner: Policy, expert: Policy, rule: TakeoverRule) -> None:
        self._learner, self._expert, self._rule = learner, expert, rule
        self._attempts: dict[str, _Attempt] = {}
        mine, its = learner.spec, expert.spec
        if max(mine.history, its.history) > 1:
            raise SpecMismatchError(
                "Policies that read a history of observations cannot be corrected: where the "
                "expert takes over, what it teaches would begin without one."
            )
        length = its.replan or its.chunk_length or mine.chunk_length
        cameras = None if None in (mine.cameras, its.cameras) else (mine.cameras, its.cameras)
        self.spec = PolicySpec(
            chunk_length=min(length, mine.chunk_length),
            action_size=mine.action_size,
            cameras=None
            if cameras is None
            else tuple(dict.fromkeys((*(cameras[0] or ()), *(cameras[1] or ())))),
            max_batch=min(mine.max_batch, its.max_batch),
        )

    def bind(self, spec: EnvSpec) -> None:
        for one in (self._learner, self._expert):
            if isinstance(one, Binds):
                one.bind(spec)

    def begin_session(self, row: Row) -> None:
        for one in (self._learner, self._expert):
            if isinstance(one, Sessions):
                one.begin_session(row)

    def end_session(self, session: str) -> None:
        self._attempts.pop(session, None)
        for one in (self._learner, self._expert):
            if isinstance(one, Sessions):
                one.end_session(session)

    def infer(self, batch: Batch) -> Actions:
        """Answer from what was decided on, and ask whoever acts where that is at its end."""
        size = self.spec.chunk_length
        values = np.zeros((batch.size, size, self.spec.action_size or 0), np.float32)
        is_expert = np.zeros(batch.size, np.bool_)
        asked = [self._decide(row) for row in batch.rows]
        # Always the whole batch, so that a row's arithmetic does not depend on the others.
        if None in asked:
            chunks = self._ask(self._learner, batch)
            steps = self._learner.spec.replan or self._learner.spec.chunk_length
            for i, row in enumerate(batch.rows):
                if asked[i] is None:
                    self._attempts[row.session].left = chunks[i, :steps]
        if True in asked:
            chunks = self._ask(self._expert, batch)
        for i, row in enumerate(batch.rows):
            attempt = self._attempts[row.session]
            if attempt.is_expert:
                values[i], is_expert[i] = chunks[i, :size], True
            else:
                given, attempt.left = attempt.left[:size], attempt.left[size:]
                values[i, : len(given)] = given
                values[i, len(given) :] = given[-1]
        return Actions(values, {INTERVENTION: is_expert})

    def close(self) -> None:
        """Close the expert; the learner belongs to whoever trains it."""
        self._expert.close()

    def _decide(self, row: Row) -> bool | None:
        """Whether the expert acts; None where the learner is to be asked."""
        bits = np.random.Generator(np.random.Philox(key=row.noise_seed))
        attempt = self._attempts.get(row.session)
        if attempt is None:
            known = self._rule.recorded.get(row.trial.id, np.zeros((0, 0)))
            steps = int(bits.integers(len(known) // 2 + 1)) if len(known) else 0
            attempt = self._attempts[row.session] = _Attempt(known[:steps].astype(np.float32))
            attempt.is_expert = bool(len(known)) and not steps
        elif not attempt.is_expert and not len(attempt.left):
            attempt.is_expert = row.trial.id in self._rule.recorded
        if attempt.is_expert or len(attempt.left):
            return attempt.is_expert
        attempt.is_expert = bool(bits.random() < self._rule.rate)
        return True if attempt.is_expert else None

    def _ask(self, policy: Policy, batch: Batch) -> Array:
        answer = check_answer(
            policy.infer(batch),
            rows=batch.size,
            size=batch.size,
            action_size=self.spec.action_size,
            chunk_length=policy.spec.chunk_length,
            name="expert" if policy is self._expert else "learner",
        )
        return np.asarray(answer.values, np.float32)
