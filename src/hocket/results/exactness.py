"""What "same trial, same result" means in a run, kept in its ledger and said in words.

`bitwise` is only claimed where it follows: the policy declares that a row's answer does not depend
on its batch, or every row was inferred alone. `inputs` comes with the checks that were made. The
level of a run is that of its least exact leg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from hocket.core.data import UNCHECKED, Exactness, RowChecks

KEY = "exactness"
"""The key in a ledger's `meta`."""
_LEVELS: tuple[Exactness, ...] = get_args(Exactness)
_MEANING: Mapping[Exactness, str] = {
    "bitwise": "Same trial, same result to the bit.",
    "inputs": "Same trial, same inputs; results may differ in the last bits with the batch.",
    "environment": "Same trial, same environment; the policy draws its own noise.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A level with the checks behind it."""

    level: Exactness
    checks: RowChecks = UNCHECKED

    def __str__(self) -> str:
        """The level in short, such as `inputs, agreed in 12 of 12 checks`."""
        return f"{self.level}, {self._checked}" if self.checks.made else self.level

    @property
    def sentence(self) -> str:
        """What the level means, and what checks of it came to."""
        if not self.checks.made:
            return _MEANING[self.level]
        return f"{_MEANING[self.level]} Rows inferred again in other batches {self._checked}."

    @property
    def _checked(self) -> str:
        made, differed = self.checks.made, self.checks.differed
        return f"{'differed' if differed else 'agreed'} in {differed or made} of {made} checks"

    def joined(self, later: Exactness) -> Claim:
        """The claim of a run that goes on at another level: the lower of both."""
        return Claim(level=max(self.level, later, key=_LEVELS.index), checks=self.checks)

    def to_plain(self) -> dict[str, Any]:
        made, differed = self.checks.made, self.checks.differed
        return {"level": self.level, "made": made, "differed": differed}


def kept_claim(meta: Mapping[str, Any], about: Mapping[str, Any]) -> Claim:
    """What a run folder claims: what its ledger keeps or, in folders that keep nothing there, what
    `about` of its run.yaml says. Those padded batches with `exact`, which proves nothing."""
    found = meta.get(KEY)
    if found is not None:
        checks = RowChecks(made=found["made"], differed=found["differed"])
        return Claim(level=found["level"], checks=checks)
    level: Exactness = about.get("exactness", "environment")
    is_padded = level == "bitwise" and meta.get("config", {}).get("exact", False)
    return Claim(level="inputs" if is_padded else level)
