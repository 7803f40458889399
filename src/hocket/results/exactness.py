"""What "same trial, same result" means in a run, kept in its ledger and said in words.

`bitwise` is only claimed where it follows: the policy declares that a row's answer does not depend
on its batch, or every row was inferred alone. `inputs` comes with the checks that were made. The
level of a run is that of its least exact leg. Legs on other hardware are no more exact than
`inputs`: their last bits may differ. Legs of other programs have nothing in common but the trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from hocket.core.data import UNCHECKED, Exactness, RowChecks
from hocket.records.ledger.view import KeptLeg, LedgerView
from hocket.records.program import changes

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
    unseeded: tuple[str, ...] = ()
    """Suites that started otherwise from the same seed: then nothing of the above holds there."""
    changed: tuple[str, ...] = ()
    """In what the program of some legs differed from that of the first: then nothing holds."""

    def __str__(self) -> str:
        """The level in short, such as `inputs, agreed in 12 of 12 checks`."""
        if self.unseeded:
            return f"none: {', '.join(self.unseeded)} does not repeat its starts"
        if self.changed:
            return f"none: of several programs ({'; '.join(self.changed)})"
        return f"{self.level}, {self._checked}" if self.checks.made else self.level

    @property
    def sentence(self) -> str:
        """What the level means, and what checks of it came to."""
        if self.unseeded:
            return unseeded_sentence(self.unseeded)
        if self.changed:
            return (
                "Several programs made these episodes, and the same trial may have another result: "
                f"{'; '.join(self.changed)}."
            )
        if not self.checks.made:
            return _MEANING[self.level]
        return f"{_MEANING[self.level]} Rows inferred again in other batches {self._checked}."

    @property
    def _checked(self) -> str:
        made, differed = self.checks.made, self.checks.differed
        return f"{'differed' if differed else 'agreed'} in {differed or made} of {made} checks"

    def joined(self, later: Exactness) -> Claim:
        """The claim of a run that goes on at another level: the lower of both."""
        return replace(self, level=max(self.level, later, key=_LEVELS.index))

    def of_legs(self, legs: Sequence[KeptLeg]) -> Claim:
        """The claim of a run with these legs."""
        known = [leg.provenance for leg in legs if leg.provenance]
        found = [each for one in known for each in one.get("changed", ())]
        found += [each for one in known[1:] for each in changes(known[0], one)]
        claim = replace(self, changed=tuple(dict.fromkeys(found)))
        if any(changes(known[0], one, hardware=True) for one in known[1:]):
            claim = claim.joined("inputs")
        return claim.joined("environment") if found else claim

    def to_plain(self) -> dict[str, Any]:
        """The claim as a ledger keeps it."""
        made, differed = self.checks.made, self.checks.differed
        plain = {"level": self.level, "made": made, "differed": differed}
        return {**plain, "unseeded": list(self.unseeded)} if self.unseeded else plain

    def to_json(self) -> dict[str, Any]:
        """The keys that reports and cards have of it."""
        checks = {"checks": asdict(self.checks)} if self.checks.made else {}
        unseeded = {"unseeded": list(self.unseeded)} if self.unseeded else {}
        changed = {"changed": list(self.changed)} if self.changed else {}
        return {"exactness": self.level, **checks, **unseeded, **changed}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Claim:
        """The claim of a report or a card; KeyError, TypeError or ValueError where it has none."""
        if document["exactness"] not in _LEVELS:
            raise ValueError(f"exactness {document['exactness']!r}")
        return cls(
            level=document["exactness"],
            checks=RowChecks(**document.get("checks", {})),
            unseeded=tuple(str(suite) for suite in document.get("unseeded", ())),
            changed=tuple(str(each) for each in document.get("changed", ())),
        )


def unseeded_sentence(suites: Sequence[str]) -> str:
    """What it means that trials of these suites did not start the same twice."""
    return (
        f"{', '.join(suites)} gave another start when one trial was reset twice: the env ignores "
        "its seed, and no result of it can be repeated or paired. `hocket check` tells more."
    )


def kept_claim(ledger: LedgerView, about: Mapping[str, Any]) -> Claim:
    """What a run folder claims: what its ledger keeps or, where it keeps nothing yet, what `about`
    of its run.yaml says, as far as its legs allow that."""
    found = ledger.meta().get(KEY)
    if found is None:
        return Claim(level=about.get("exactness", "environment")).of_legs(ledger.legs())
    checks = RowChecks(made=found["made"], differed=found["differed"])
    unseeded = tuple(found.get("unseeded", ()))
    return Claim(level=found["level"], checks=checks, unseeded=unseeded).of_legs(ledger.legs())
