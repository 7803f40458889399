"""What tests of delays share: a policy whose answers show what it saw, toys that can hold still,
and a plain loop with one env, written from the equations, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from hypothesis import strategies as st

from hocket.core.data import Actions, Array, Batch, Row, Trial, noise_seed
from hocket.core.specs import PolicySpec
from hocket.testing.toy import PlainToyEnv, ToyConfig, ToyEnv
from support.row_toys import RowToy, RowToyConfig, RowToys

STATE = "observation/state"


@st.composite
def laws(draw: st.DrawFn, most: int) -> tuple[int, str]:
    """Steps between two decisions, up to `most`, and a delay of any law as users write it, which
    is often drawn from 0 up to just these steps."""
    s = draw(st.integers(1, most))
    low = draw(st.just(0) | st.integers(0, s))
    high = draw(st.just(s) | st.integers(low, s))
    share = draw(st.sampled_from(["0", "0.3", "0.7", "1"]))
    texts = [f"{high}", f"{low}..{high}", f"spikes:{low}..{high}@{share}"]
    return s, draw(st.sampled_from([*texts, f"geometric:{low}..{high}@{share}"]))


def wave(state: Array, seed: int, length: int, size: int) -> Array:
    """A chunk `[T, A]` that follows from every number seen, and from the noise seed."""
    phase = float(np.asarray(state, np.float64).sum()) + seed % 997
    return np.sin(phase + np.arange(length * size, dtype=np.float64)).reshape(length, size)


class Waves:
    """Answers each row with its wave; to the bit the same in any batch."""

    def __init__(
        self, length: int = 12, *, history: int = 1, size: int = 4, replan: int = 5
    ) -> None:
        self.spec = PolicySpec(
            chunk_length=length,
            action_size=size,
            history=history,
            batch_invariant=True,
            replan=replan,
            max_batch=4,
        )

    def infer(self, batch: Batch) -> Array:
        return np.stack(
            [
                wave(state, row.noise_seed, self.spec.chunk_length, self.spec.action_size or 1)
                for state, row in zip(batch.arrays[STATE], batch.rows, strict=True)
            ]
        )

    def close(self) -> None: ...


class Steady(Waves):
    """Answers by what it sees alone, whatever the trial is called."""

    def infer(self, batch: Batch) -> Array:
        return np.stack([wave(state, 0, 12, 4) for state in batch.arrays[STATE]])


def continued(chunk: Array, left: Array, committed: int) -> Array:
    """A chunk that goes on from what is left of the last one: it shows where each action of that
    was taken to be, and how many were taken to be committed."""
    found = chunk.copy()
    found[: len(left)] = 0.5 * found[: len(left)] + 0.5 * left
    return found * (1.0 + 0.01 * committed)


class Continuing(Waves):
    """Waves that continue each other."""

    continuations = ("rtc", "prefix")
    method = ""

    def continue_by(self, method: str, settings: Mapping[str, Any]) -> None:
        self.method, self.settings = method, dict(settings)

    def infer(self, batch: Batch) -> Array:
        chunks = super().infer(batch)
        if self.method and "action/prefix" in batch.arrays:
            for row, length in enumerate(batch.arrays["action/prefix_length"].tolist()):
                prefix = batch.arrays["action/prefix"][row]
                assert not prefix[length:].any()
                delay = int(batch.arrays["action/delay"][row])
                chunks[row] = continued(chunks[row], prefix[:length], delay)
        return chunks


class WithActions(Waves):
    """Answers with Actions, and keeps a session for each attempt, which must be asked in order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, int] = {}
        self.ended: list[str] = []

    def begin_session(self, row: Row) -> None:
        self.asked[row.session] = 0

    def end_session(self, session: str) -> None:
        del self.asked[session]
        self.ended.append(session)

    def infer(self, batch: Batch) -> Any:
        for row in batch.rows:
            if "warm-up" not in row.session:
                assert self.asked[row.session] == row.chunk
                self.asked[row.session] += 1
        return Actions(super().infer(batch), version=3)


class HoldingToy(ToyEnv):
    """Holds still by half of its last action: its state shows whether it was held, and when."""

    def hold_action(self, last: Array | None) -> Array:
        return np.full(4, 0.25, np.float32) if last is None else np.asarray(last) / 2


class PlainHoldingToy(PlainToyEnv):
    """The same for an env that observes at every step."""

    hold_action = HoldingToy.hold_action


def make_holding(length_min: int = 20, length_max: int = 60) -> HoldingToy:
    return HoldingToy("count", ToyConfig(length_min=length_min, length_max=length_max))


def make_plain(length_min: int = 20, length_max: int = 60) -> PlainHoldingToy:
    return PlainHoldingToy("plain", ToyConfig(length_min=length_min, length_max=length_max))


class HoldsBeforeChunks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Holds still for three steps before every fifth step but the first, inside of it: whoever
    decides every five steps has seen what was before that."""

    def reset(self, **how: Any) -> Any:
        self._steps = 0
        self._last: Any = None
        return self.env.reset(**how)

    def step(self, action: Any) -> Any:
        total, held = 0.0, 0 if self._steps % 5 or not self._steps else 3
        self._steps += 1
        for index in range(held + 1):
            if index < held:
                self._last = self.env.unwrapped.hold_action(self._last)  # type: ignore[attr-defined]
            else:
                self._last = action
            observation, reward, over, cut, info = self.env.step(self._last)
            total += float(reward)
            if over:
                break
        return observation, total, over, cut, info


def make_wrapped() -> Any:
    return HoldsBeforeChunks(make_plain())


def play_ensemble(seed: int, *, d: int, s: int, coefficient: float) -> tuple[int, float]:
    """The plain loop with everything that chunks said of a step, the oldest first: those count
    that were there when the chunk before the next decision came."""
    env, trial = make_holding(), Trial("support.delayed:make_holding", "make_holding", seed)
    state = env.reset(seed=seed)[0]["state"]
    said: dict[int, list[Array]] = {}
    total, step, decision, over = 0.0, 0, 0, False
    plan: dict[int, Array] = {}
    while True:
        if step % s == 0:
            chunk = wave(state, noise_seed(trial, decision), 12, 4)
            usable = step + (d if decision else 0)
            for index, action in enumerate(chunk):
                said.setdefault(step + index, []).append(action)
            for at in range(usable, step + s + d):
                weights = np.exp(-coefficient * np.arange(len(said[at])))
                plan[at] = (weights[:, None] * np.stack(said[at])).sum(0) / weights.sum()
            decision += 1
        observation, reward, over, _, _ = env.step(plan[step].astype(np.float32))
        state, total, step = observation["state"], total + reward, step + 1
        if over:
            return step, round(total, 9)


class HoldingRowToy(RowToy):
    """Rows that hold still by half of their last action."""

    def hold_actions(self, rows: Array, last: Array) -> Array:
        del rows
        return last / 2


class HoldingRows(RowToys):
    """The batched suite of such rows."""

    def make_rows(self, task: str, rows: int) -> Any:
        return HoldingRowToy(rows, ("walk", "run"), self._config)


class OneRow:
    """A row alone, as an env of gymnasium's."""

    def __init__(self, config: RowToyConfig, task: str) -> None:
        self._toy = HoldingRowToy(1, ("walk", "run"), config)
        self._task = task
        self._row = np.zeros(1, np.int64)

    def reset(self, *, seed: int) -> tuple[Any, Any]:
        self._toy.reset(self._row, [self._task], [seed])
        return self._look(), {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, Any]:
        result = self._toy.step(np.asarray(action)[None], np.ones(1, np.bool_))
        return self._look(), float(result.rewards[0]), bool(result.terminated[0]), False, {}

    def hold_action(self, last: Array | None) -> Array:
        return np.zeros(3, np.float32) if last is None else np.asarray(last) / 2

    def _look(self) -> Any:
        return {"state": self._toy.observe(self._row)[STATE][0]}


class Played(NamedTuple):
    """What came of a trial in the plain loop."""

    actions: list[list[float]]
    chunks: list[int]
    ages: list[int]
    total: float
    decisions: int


def play(
    env: Any,
    trial: Trial,
    delay: Callable[[int], int],
    *,
    method: str,
    first: str = "free",
    s: int = 5,
    length: int = 12,
    history: int = 1,
    size: int = 4,
) -> Played:
    """One env, one loop: at a decision look, execute d steps of what was decided before (or hold
    still), then the new chunk from there to the next decision."""
    seen = [env.reset(seed=trial.seed)[0]["state"]] * history
    last: Array | None = None
    left: list[tuple[Array, int, int]] = []  # actions that are decided, their chunks, their looks
    played = Played([], [], [], 0.0, 0)
    total, step, decision = 0.0, 0, 0

    def do(action: Any, chunk: int, looked: int) -> bool:
        nonlocal last, total, step, seen
        observation, reward, over, _, _ = env.step(action)
        last, total, step = action, total + reward, step + 1
        seen = [*seen[1:], observation["state"]]
        played.actions.append(np.asarray(action, np.float64).tolist())
        played.chunks.append(chunk)
        played.ages.append(step - 1 - looked)
        return bool(over)

    while True:
        looked = step
        d = 0 if decision == 0 and first == "free" else delay(decision)
        new = wave(np.stack(seen), noise_seed(trial, decision), length, size)
        if method in ("rtc", "prefix"):
            rest = np.stack([action for action, _, _ in left]) if left else np.zeros((0, size))
            new = continued(new, rest, d)
        for index in range(d):
            if method == "blocking" or decision == 0:
                over = do(env.hold_action(last), -1, looked)
            else:
                action, chunk, before = left[index]
                over = do(action.astype(np.float32), chunk, before)
            if over:
                return played._replace(total=total, decisions=decision + 1)
        decided = [(action, decision, looked) for action in new]
        for action, chunk, _ in decided[:s] if method == "blocking" else decided[d:s]:
            if do(action.astype(np.float32), chunk, looked):
                return played._replace(total=total, decisions=decision + 1)
        left = decided[s:]
        decision += 1
