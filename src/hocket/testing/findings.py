"""What every check is made of: rules, what is on trial, and the error that tells what was found.

A rule is a function that tries one rule of a contract and raises where it does not hold; its
docstring is the rule itself, a sentence, which the user is shown.
"""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from hocket.core.data import Array
from hocket.errors import HocketError

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
