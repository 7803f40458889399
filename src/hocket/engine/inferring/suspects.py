"""Trials that may have made a batch raise, where the policy keeps state for each attempt.

Such a batch is never asked again: `infer` may have moved the state of all its rows. Its attempts
begin anew, and each is inferred alone until one of them raises alone. Nothing here keeps time.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST_GUILTY = 4096
"""Culprits that are remembered: a server's clients may bring ever more."""


class Suspects:
    """Says which trials are inferred alone. A batch that raised is a group of suspects; no trial is
    in two, since a suspect shares no batch."""

    def __init__(self) -> None:
        self._groups: dict[str, set[str]] = {}
        """The group of each suspect, which its members share."""
        self._guilty: dict[str, None] = {}
        """Culprits, the one found longest ago first."""

    def add(self, trials: Iterable[str]) -> None:
        """A batch of these trials raised, and nobody knows for which of them."""
        group = set(trials)
        self._groups.update(dict.fromkeys(group, group))

    def is_alone(self, trial: str) -> bool:
        """True if the trial is to be inferred in batches of one: a suspect until its group's
        culprit is known or it has ended, a culprit for good."""
        return trial in self._groups or trial in self._guilty

    def convict(self, trial: str) -> set[str]:
        """The trial raised alone. Returns those that are no longer suspected."""
        self._guilty[trial] = None
        if len(self._guilty) > MOST_GUILTY:
            del self._guilty[next(iter(self._guilty))]
        group = self._groups.get(trial, set())
        for each in group:
            del self._groups[each]
        return group - {trial}

    def acquit(self, trial: str) -> None:
        """The trial has ended."""
        self._groups.pop(trial, set()).discard(trial)

    def forget(self, prefix: str) -> None:
        """Forget all trials whose names begin so."""
        for trial in [each for each in self._groups if each.startswith(prefix)]:
            self.acquit(trial)
        for trial in [each for each in self._guilty if each.startswith(prefix)]:
            del self._guilty[trial]
