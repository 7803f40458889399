"""What a check found, and the error that tells it."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.core.data import Array
from hocket.errors import HocketError


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that does not hold."""

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


class Broken(Exception):
    """Raised inside a rule's check, with what was seen."""


def try_rule(rule: str, check: Callable[[], object]) -> list[Finding]:
    """Run one rule's check. Whatever it raises is a finding: somebody else's code is on trial."""
    try:
        check()
    except Broken as broken:
        return [Finding(rule, str(broken))]
    except Exception as exc:  # noqa: BLE001 - any exception of the implementation is the finding
        last = traceback.extract_tb(exc.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        return [Finding(rule, f"It raised {type(exc).__name__}: {exc} (at {where}).")]
    return []


Rules = Sequence[tuple[str, Callable[[Any], None]]]
"""Sentences, and the checks that try them on whatever is on trial."""


def first_broken(rules: Rules, subject: Any) -> list[Finding]:
    """The first rule that does not hold: what comes after it cannot be tried."""
    for sentence, check in rules:
        findings = try_rule(sentence, functools.partial(check, subject))
        if findings:
            return findings
    return []


def all_broken(
    rules: Rules, subject: Any, renew: Callable[[], object] = lambda: None
) -> list[Finding]:
    """Every rule that does not hold. `renew` is called after each, so that what one rule broke is
    not held against the next."""
    findings: list[Finding] = []
    for sentence, check in rules:
        found = try_rule(sentence, functools.partial(check, subject))
        if found:
            try_rule(sentence, renew)
        findings += found
    return findings


def conclude(subject: str, findings: Sequence[Finding]) -> None:
    """Raise ConformanceError where a rule does not hold."""
    if findings:
        raise ConformanceError(subject, findings)


def require(claim: bool, detail: str) -> None:  # noqa: FBT001 - reads like assert
    """Raise Broken unless the claim holds."""
    if not claim:
        raise Broken(detail)


def is_same(one: Array, other: Array) -> bool:
    """Whether two arrays are equal to the bit, NaN included."""
    return (
        one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    )


def is_close(one: Array, other: Array, tolerance: float) -> bool:
    """Whether two arrays are equal up to rounding."""
    return one.shape == other.shape and bool(
        np.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    )
