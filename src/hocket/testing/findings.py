"""What every check is made of: rules, what is on trial, short episodes that are played on it and
compared, and the error that tells what was found.

A rule is a function that tries one rule of a contract and raises where it does not hold; its
docstring is the rule itself, a sentence, which the user is shown.
"""

from __future__ import annotations

import functools
import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import numpy as np

from hocket.core.data import Array, Observation
from hocket.errors import HocketError
from hocket.workers.env.spaces import Drive, flatten

P = ParamSpec("P")
T = TypeVar("T")
Rules = Sequence[Callable[[Any], None]]
LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    """The rule, as a sentence."""
    detail: str
    """What was seen instead."""

    def __str__(self) -> str:
        return f"{self.rule} {self.detail}"


class ConformanceError(AssertionError, HocketError):
    """An implementation breaks rules of its contract; `findings` lists them."""

    def __init__(self, subject: str, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        lines = "\n".join(f"  - {finding}" for finding in findings)
        plural = "rule" if len(findings) == 1 else "rules"
        super().__init__(f"{subject} breaks {len(findings)} {plural}:\n{lines}")


def raising(
    subject: str | Callable[P, str], findings: Callable[P, list[Finding]]
) -> Callable[P, None]:
    """The check `check_x` that raises what `x_findings` finds; it is called in the same way."""

    @functools.wraps(findings)
    def check(*args: P.args, **kwargs: P.kwargs) -> None:
        found = findings(*args, **kwargs)
        if found:
            name = subject if isinstance(subject, str) else subject(*args, **kwargs)
            raise ConformanceError(name, found)

    check.__name__ = check.__qualname__ = f"check_{findings.__name__.removesuffix('_findings')}"
    check.__doc__ = f"Raise ConformanceError where there is a finding.\n\n    {findings.__doc__}"
    return check


class Broken(Exception):
    """Raised inside a rule, with what was seen."""


def require(claim: bool, detail: str) -> None:  # noqa: FBT001 - reads like assert
    if not claim:
        raise Broken(detail)


def wait_until(claim: Callable[[], bool], deadline_s: float, otherwise: str) -> None:
    """Look until the claim holds; raise Broken where it does not within the deadline."""
    deadline = time.monotonic() + deadline_s
    while not claim():
        require(time.monotonic() < deadline, otherwise)
        time.sleep(LOOK_S)


class Bench(Generic[T]):
    """Holds what is on trial, one at a time: two GL contexts in one process give wrong images."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: T | None = None

    @property
    def held(self) -> T:
        return self.fresh() if self._held is None else self._held

    def fresh(self) -> T:
        """Another one, the one before closed."""
        self.close()
        self._held = self._make()
        return self._held

    def close(self) -> None:
        held: Any = self._held
        self._held = None
        if held is not None:
            held.close()


def closes(bench: Bench[Any]) -> None:
    """close() may be called twice."""
    held = bench.held
    bench.close()
    held.close()


def first_broken(rules: Rules, subject: Any) -> list[Finding]:
    """The first rule that does not hold: what comes after it cannot be tried. Whatever a rule
    raises is a finding: somebody else's code is on trial."""
    for rule in rules:
        try:
            rule(subject)
        except Broken as broken:
            return [Finding(str(rule.__doc__), str(broken))]
        except Exception as exc:  # noqa: BLE001 - any exception of the implementation is the finding
            last = traceback.extract_tb(exc.__traceback__)[-1]
            where = f"{last.filename}:{last.lineno}"
            detail = f"It raised {type(exc).__name__}: {exc} (at {where})."
            return [Finding(str(rule.__doc__), detail)]
    return []


def all_broken(rules: Rules, bench: Bench[Any]) -> list[Finding]:
    """Every rule that does not hold, each tried on something that no rule broke before."""
    findings: list[Finding] = []
    for rule in rules:
        found = first_broken([rule], bench)
        if found:
            first_broken([Bench.fresh], bench)
        findings += found
    return findings


def examine(bench: Bench[Any], basics: Rules, rules: Callable[[], Rules]) -> list[Finding]:
    """The first of the basics that is broken, or else every broken one of the rules, which are
    asked for once the basics hold. What the bench holds is closed in the end."""
    try:
        return first_broken(basics, bench) or all_broken(rules(), bench)
    finally:
        first_broken([Bench.close], bench)


def is_same(one: Array, other: Array) -> bool:
    """True if two arrays are equal to the bit, NaN included."""
    return (
        one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    )


def is_close(one: Array, other: Array, tolerance: float) -> bool:
    """True if two arrays are equal up to rounding."""
    return one.shape == other.shape and bool(
        np.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    )


class Moment(NamedTuple):
    """What an env gave at one step; `observation` is None where it was not asked."""

    observation: Observation | None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it


class EnvBench(Bench[Any]):
    """Holds the env on trial, and plays the same `steps` actions in every episode."""

    def __init__(self, make: Callable[[], Any], seeds: Sequence[int], steps: int) -> None:
        super().__init__(make)
        self.seeds = tuple(seeds)
        self.steps = steps

    @functools.cached_property
    def actions(self) -> Array:
        return draw_actions(self.held.action_space, self.steps)

    def reset(self, seed: int) -> Observation:
        """Begin an episode as a worker does, global randomness keyed as well."""
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        return read(self.held.reset(seed=seed)[0])

    def play(self, seed: int | None = None, *, looks: int | None = None) -> list[Moment]:
        """A short episode from its reset on, of the first seed by default: by `step`, or by
        `advance` and then `looks` times `observe`."""
        first: Observation | None = self.reset(self.seeds[0] if seed is None else seed)
        if looks is not None:
            first = self._look(looks)
        return [Moment(first), *self.go_on(0, looks)]

    def go_on(self, done: int, looks: int | None = None) -> list[Moment]:
        """The rest of an episode in which `done` actions were executed."""
        moments: list[Moment] = []
        for action in self.actions[done:]:
            if looks is None:
                observation, *turn = self.held.step(action)
                seen: Observation | None = read(observation)
            else:
                turn = self.held.advance(action)
                require(
                    isinstance(turn, tuple) and len(turn) == 4,
                    "advance must return (reward, terminated, truncated, info).",
                )
                seen = self._look(looks)
            reward, terminated, truncated, info = turn
            moments.append(Moment(seen, float(reward), bool(terminated), bool(truncated), info))
            if terminated or truncated:
                break
        return moments

    def _look(self, looks: int) -> Observation | None:
        seen = [read(self.held.observe()) for _ in range(looks)]
        for again in seen[1:]:
            changed = difference(seen[0], again)
            require(changed is None, f"Called twice in a row it gives another {changed}.")
        return seen[0] if seen else None


def draw_actions(space: Any, count: int) -> Array:
    """Actions `[count, ...]` all over an action space, the same at each call."""
    drive = Drive(space)
    low = np.where(np.isfinite(drive.spec.low), drive.spec.low, -1.0).ravel()
    high = np.where(np.isfinite(drive.spec.high), drive.spec.high, 1.0).ravel()
    drawn = np.random.default_rng(0).uniform(size=(count, drive.spec.size))
    return drive.decode(np.ascontiguousarray(low + drawn * (high - low)).tobytes(), count)


def read(raw: Any) -> Observation:
    """The observation as a flat copy: an env may write into what it returned."""
    arrays, _ = flatten(raw)
    return {key: np.array(array) for key, array in arrays.items()}


def difference(one: Observation, other: Observation, tolerance: float = 0.0) -> str | None:
    """The first key whose arrays differ, by more than the tolerance where there is one."""
    for key in sorted(set(one) | set(other)):
        if key not in one or key not in other:
            return repr(key)
        if is_same(one[key], other[key]):
            continue
        if not tolerance or not is_close(one[key], other[key], tolerance):
            return repr(key)
    return None


def require_same(
    one: Sequence[Moment], other: Sequence[Moment], when: str, tolerance: float = 0.0
) -> None:
    """Two episodes must be equal, to the bit or up to a tolerance, as far as both were observed."""
    for step, (a, b) in enumerate(zip(one, other, strict=False)):
        is_equal = a.reward == b.reward or abs(a.reward - b.reward) <= tolerance
        require(is_equal, f"Rewards differ at step {step} {when}.")
        require(a[2:4] == b[2:4], f"Ends differ at step {step} {when}.")
        if a.observation is not None and b.observation is not None:
            key = difference(a.observation, b.observation, tolerance)
            require(key is None, f"Observations of {key} differ at step {step} {when}.")
    require(len(one) == len(other), f"Lengths {len(one)} and {len(other)} differ {when}.")


def require_one_shape(episodes: Sequence[Sequence[Moment]]) -> None:
    """Every observation must have the keys, shapes and dtypes of the first."""
    shapes = [
        (index, step, {(k, a.shape, a.dtype.str) for k, a in (moment.observation or {}).items()})
        for index, moments in enumerate(episodes)
        for step, moment in enumerate(moments)
    ]
    for index, step, seen in shapes:
        changed = sorted(seen ^ shapes[0][2])
        require(not changed, f"At step {step} of episode {index} {changed[:1]} changed.")
