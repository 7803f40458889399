"""What a sequential comparison came to, and how it is kept with the run that it ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.core.data import Outcome
from hocket.results.comparing.paired import Verdict
from hocket.results.comparing.sequential import Look, PairedSequentialTest
from hocket.results.stats import Interval

KEY = "decision"
"""The name under which a run's ledger keeps its decision."""
_JUDGED = (Outcome.SUCCESS, Outcome.FAILURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the test said when the run stopped: a is the run itself, b the one held against it."""

    against: str
    """The folder of the other run, absolute."""
    test: str
    alpha: float
    look: Look
    interval: Interval | None
    """Of the difference a - b, valid at stopping; None where nothing was looked at."""
    error_pairs: int
    """Pairs with an error on one side at least, which count as ties."""
    errors_as_failures: Verdict
    """What the same test says by the same look if every error is a failure."""

    @property
    def stands(self) -> bool:
        """True if errors counted as failures would have decided the same."""
        return self.errors_as_failures == self.look.decision

    def told(self, a: str, b: str) -> str:
        """The decision in words, with the names of both runs."""
        look = self.look
        counts = (
            f"at look {look.number:,}, after {look.pairs:,} pairs ({look.only_a:,} won by {a} "
            f"alone, {look.only_b:,} by {b} alone; p = {look.p_value:.2g}, "
            f"valid at any look; {self.test})"
        )
        if look.decision == "undecided":
            return f"Undecided {counts}."
        return f"Decided {counts}: {a if look.decision == 'a better' else b} is better."

    def errors_told(self, a: str, b: str) -> str:
        """How much rests on counting pairs with an error as ties; empty where there are none."""
        if not self.error_pairs:
            return ""
        named = {"a better": f"{a} is better", "b better": f"{b} is better"}
        other = named.get(self.errors_as_failures, "undecided")
        verdict = "that stands" if self.stands else f"it would be: {other}"
        return (
            f"{self.error_pairs:,} pair{'s' if self.error_pairs > 1 else ''} with an error on one "
            f"side at least count as ties; with errors counted as failures {verdict}."
        )

    def mirrored(self, against: str) -> Decision:
        """The same decision, seen from the other run."""
        look, interval = self.look, self.interval
        return dataclasses.replace(
            self,
            against=against,
            look=dataclasses.replace(
                look, only_a=look.only_b, only_b=look.only_a, decision=_MIRRORED[look.decision]
            ),
            interval=None
            if interval is None
            else dataclasses.replace(interval, low=-interval.high, high=-interval.low),
            errors_as_failures=_MIRRORED[self.errors_as_failures],
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Decision:
        interval = plain["interval"]
        return cls(
            **{
                **plain,
                "look": Look(**plain["look"]),
                "interval": None if interval is None else Interval(**interval),
            }
        )


_MIRRORED: Mapping[Verdict, Verdict] = {
    "a better": "b better",
    "b better": "a better",
    "undecided": "undecided",
}


class PairedRuns:
    """Two runs, looked at round by round. A pair with an error on either side, or with nothing to
    succeed at, is a tie and moves no bet. Where failures tend to crash that flatters a side, so a
    second test takes errors for failures."""

    def __init__(self, test: PairedSequentialTest) -> None:
        self._test = test
        self._looks, self._pessimist = test.begin(), test.begin()
        self._error_pairs = 0

    @property
    def look(self) -> Look:
        return self._looks.look

    def see(self, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Look:
        """Look after the next round, of which both runs' outcomes are given in the same order."""
        pairs = list(zip(ours, theirs, strict=True))
        if self.look.decision == "undecided":
            self._error_pairs += sum(Outcome.ERROR in pair for pair in pairs)
            self._pessimist.see(*_successes(pairs, (*_JUDGED, Outcome.ERROR)))
        return self._looks.see(*_successes(pairs, _JUDGED))

    def decision(self, against: str) -> Decision:
        """What is known now."""
        return Decision(
            against=against,
            test=self._test.name,
            alpha=self._test.alpha,
            look=self.look,
            interval=self._looks.interval(),
            error_pairs=self._error_pairs,
            errors_as_failures=self._pessimist.look.decision,
        )


def _successes(
    pairs: Sequence[tuple[Outcome, Outcome]], counted: Collection[Outcome]
) -> tuple[list[bool], list[bool]]:
    """Which side succeeded in each pair; a pair with an outcome that is not counted is a tie."""
    told = [(a, b) if a in counted and b in counted else (None, None) for a, b in pairs]
    return [a is Outcome.SUCCESS for a, _ in told], [b is Outcome.SUCCESS for _, b in told]
