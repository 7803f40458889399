"""ChunkReplay against a naive model of it, under random resets and failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hocket.core.data import Batch, Trial, noise_seed
from hocket.core.specs import PolicySpec
from hocket.engine.replay import ChunkReplay

FAILURES = [RuntimeError, KeyboardInterrupt, ConnectionResetError, SystemExit, EOFError]


def chunk_for(state: float, seed: int, length: int) -> Any:
    return np.random.default_rng([seed, int(state)]).normal(size=(length, 2))


class Failing:
    """Fails at the infer it is told to; counts what it was asked for."""

    def __init__(self, length: int, max_batch: int) -> None:
        self.spec = PolicySpec(chunk_length=length, action_size=2, max_batch=max_batch)
        self.until_failure: int | None = None
        self.failure: type[BaseException] = RuntimeError
        self.answered: list[str] = []

    def infer(self, batch: Batch) -> Any:
        assert batch.size <= self.spec.max_batch
        if self.until_failure is not None:
            self.until_failure -= 1
            if self.until_failure < 0:
                self.until_failure = None
                raise self.failure
        self.answered += [row.trial.task for row in batch.rows]
        state = batch.arrays["state"][:, 0]
        return np.stack(
            [
                chunk_for(state[place], row.noise_seed, self.spec.chunk_length)
                for place, row in enumerate(batch.rows)
            ]
        )

    def close(self) -> None: ...


@dataclass
class NaiveEnv:
    """One env's chunk, as plainly as it can be written."""

    number: int
    left: list[Any] = field(default_factory=list)
    episode: int = 0
    chunk: int = 0
    acted: bool = False

    def act(self, state: float, length: int, replan: int) -> Any:
        if not self.left:
            trial = Trial(suite="loop", task=f"env-{self.number}", seed=0, repeat=self.episode)
            made = chunk_for(state, noise_seed(trial, self.chunk), length)
            self.left = list(made[:replan])
            self.chunk += 1
        self.acted = True
        return self.left.pop(0)

    def reset(self) -> None:
        self.episode += self.acted
        self.left, self.chunk, self.acted = [], 0, False


class Loop(RuleBasedStateMachine):
    @initialize(
        envs=st.integers(1, 5),
        length=st.integers(1, 5),
        replan=st.integers(1, 5),
        max_batch=st.integers(1, 3),
    )
    def begin(self, envs: int, length: int, replan: int, max_batch: int) -> None:
        self.length, self.replan = length, min(replan, length)
        self.policy = Failing(length, max_batch)
        self.replay = ChunkReplay(self.policy, replan=self.replan)
        self.envs = [NaiveEnv(number) for number in range(envs)]
        self.state = 0.0
        self.lost = False

    def observe(self) -> dict[str, Any]:
        self.state += 1
        return {"state": np.array([[self.state + env.number] for env in self.envs])}

    def expect(self, actions: Any, obs: dict[str, Any]) -> None:
        ready = sum(not env.left for env in self.envs)
        expected = [
            env.act(obs["state"][env.number, 0], self.length, self.replan) for env in self.envs
        ]
        np.testing.assert_array_equal(actions, np.array(expected, np.float32))
        if not self.lost:
            assert len(self.policy.answered) == ready
        self.lost = False

    @rule()
    def act(self) -> None:
        obs = self.observe()
        self.policy.answered.clear()
        self.expect(self.replay.act(obs), obs)

    @rule(failure=st.sampled_from(FAILURES), after=st.integers(0, 3))
    def act_that_may_fail(self, failure: type[BaseException], after: int) -> None:
        obs = self.observe()
        self.policy.answered.clear()
        self.policy.failure, self.policy.until_failure = failure, after
        try:
            actions = self.replay.act(obs)
        except failure:
            self.lost = self.lost or issubclass(failure, (ConnectionError, EOFError))
            return
        self.policy.until_failure = None
        self.expect(actions, obs)

    @rule(choice=st.lists(st.booleans(), min_size=5, max_size=5), as_mask=st.booleans())
    def reset(self, choice: list[bool], as_mask: bool) -> None:
        ids = [env.number for env in self.envs if choice[env.number]]
        mask = np.array([choice[env.number] for env in self.envs])
        if self.replay.num_envs is not None:
            self.replay.reset(mask if as_mask else ids)
            for number in ids:
                self.envs[number].reset()

    @rule()
    def act_with_another_number(self) -> None:
        if self.replay.num_envs is not None:
            with pytest.raises(Exception, match="envs"):
                self.replay.act({"state": np.zeros((len(self.envs) + 1, 1))})

    @invariant()
    def number_is_fixed_once_known(self) -> None:
        if hasattr(self, "replay"):
            assert self.replay.num_envs in (None, len(self.envs))


TestLoop = Loop.TestCase
TestLoop.settings = settings(stateful_step_count=30)
