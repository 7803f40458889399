"""Stops a run when its comparison with another is decided, and no sooner than that is valid.

Trials are planned in rounds, one trial of each task, in the planned order. Looks are at complete
rounds only, whatever order trials end in: to look at "those that have ended" would favour the
short ones. What was planned when the test decides is still run to its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import AttemptsBegan, EpisodesSealed, Event
from hocket.errors import UsageError
from hocket.results.sequential import Look, PairedSequentialTest, StepSequentialTest

Plan = Callable[[Sequence[Trial]], None]
"""A function that plans more trials: they are kept with the run, and handed to lanes."""


class Decider:
    """A reader that keeps enough trials planned until the paired sequential test decides."""

    def __init__(
        self,
        rounds: Sequence[Sequence[Trial]],
        baseline: Mapping[str, Episode],
        test: PairedSequentialTest | StepSequentialTest,
    ) -> None:
        self._rounds = [list(group) for group in rounds]
        self._baseline = baseline
        self._test = test
        self._ended: dict[str, Episode] = {}
        self._complete = 0
        self._planned = 0
        self._waiting = 0
        self._ahead = 1
        self._plan: Plan = lambda _: None
        self.look = Look(pairs=0, only_a=0, only_b=0, decision="undecided", p_value=1.0)

    def begin(
        self, plan: Plan, *, planned: Sequence[Trial], done: Sequence[Episode], ahead: int
    ) -> None:
        """Start a run, or go on with one. `ahead` is how many trials are to wait for lanes at any
        time."""
        self._plan = plan
        self._planned = -(-len(planned) // len(self._rounds[0]))
        self._ended = {episode.trial.id: episode for episode in done}
        self._waiting = len(planned) - len(done)
        self._ahead = ahead
        self._look()
        self._top_up()

    def on(self, event: Event) -> None:
        """Look when rounds are complete; plan more when lanes would run dry."""
        if isinstance(event, EpisodesSealed):
            self._ended.update({episode.trial.id: episode for episode in event.episodes})
            self._look()
        elif isinstance(event, AttemptsBegan):
            self._waiting -= sum(attempt == 0 for attempt in event.attempts)
            self._top_up()

    def close(self) -> None: ...

    def sentence(self, name: str) -> str:
        """Says what was decided; `name` is the run that this one is compared with."""
        look = self.look
        counts = (
            f"after {look.pairs} pairs ({look.only_a} won by this run alone, {look.only_b} by "
            f"{name} alone)"
        )
        if look.decision == "undecided":
            return f"Undecided {counts}, at the cap of {sum(map(len, self._rounds))} trials."
        better = "this run is better" if look.decision == "a better" else f"{name} is better"
        p = "" if look.p_value is None else f", p = {look.p_value:.2g} (valid at any look)"
        return f"Decided {counts}: {better}{p}."

    def _look(self) -> None:
        before = self._complete
        while self._complete < len(self._rounds) and all(
            trial.id in self._ended for trial in self._rounds[self._complete]
        ):
            self._complete += 1
        if self._complete == before or self.look.decision != "undecided":
            return
        trials = list(itertools.chain.from_iterable(self._rounds[: self._complete]))
        ours = [self._won(self._ended[trial.id], trial) for trial in trials]
        theirs = [self._won(self._baseline[trial.id], trial) for trial in trials]
        self.look = self._test.run(ours, theirs)

    def _won(self, episode: Episode, trial: Trial) -> bool:
        # A pair with an error on either side says nothing: as a tie it moves no bet.
        has_error = Outcome.ERROR in (
            self._baseline[trial.id].outcome,
            self._ended[trial.id].outcome,
        )
        return episode.outcome is Outcome.SUCCESS and not has_error

    def _top_up(self) -> None:
        while (
            self.look.decision == "undecided"
            and self._waiting < self._ahead
            and self._planned < len(self._rounds)
        ):
            group = self._rounds[self._planned]
            self._planned += 1
            self._waiting += len(group)
            self._plan(group)


def sequential_test(
    kind: Literal["paired", "step"], rounds: Sequence[Sequence[Trial]], *, alpha: float
) -> PairedSequentialTest | StepSequentialTest:
    """The test that decides about trials planned in these rounds."""
    if kind == "step":
        test = StepSequentialTest(alpha=alpha, cap=sum(map(len, rounds)))
        test.run([], [])  # says now, not after an hour, that its package is missing
        return test
    return PairedSequentialTest(alpha=alpha, pairs_per_round=len(rounds[0]))


def rounds_of(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The planned trials, which must come seed by seed, in rounds of one for each task."""
    groups = [
        list(group)
        for _, group in itertools.groupby(trials, key=lambda trial: (trial.seed, trial.repeat))
    ]
    if len({len(group) for group in groups}) != 1:
        raise UsageError("The planned trials do not form rounds of one trial for each task.")
    return groups


def paired_with(
    trials: Sequence[Trial], episodes: Sequence[Episode], name: str
) -> dict[str, Episode]:
    """The other run's episode of each planned trial, by trial id; raises UsageError where one is
    missing."""
    found = {episode.trial.id: episode for episode in episodes}
    missing = [trial.id for trial in trials if trial.id not in found]
    if missing:
        raise UsageError(
            f"{name} has no episode of {len(missing)} of the {len(trials)} planned trials "
            f"(the first is {missing[0]}). Plan the same envs and seeds, and at most as many "
            f"episodes."
        )
    return {trial.id: found[trial.id] for trial in trials}
