"""Stops a run when its comparison with another is decided, and no sooner than that is valid.

Trials are planned in rounds, one trial of each task, in the planned order. Looks are at complete
rounds only, whatever order trials end in: to look at "those that have ended" would favour the
short ones. What was planned when the test decides is still run to its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hocket.core.data import Episode, Trial
from hocket.core.events import AttemptsBegan, EpisodesSealed, Event, RunStarted
from hocket.errors import UsageError
from hocket.records.ledger.view import LedgerView
from hocket.records.run_file import load_run
from hocket.results.comparing.sequential import Decision, PairedRuns, PairedSequentialTest, Stake
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig

Plan = Callable[[Sequence[Trial]], None]
"""A function that plans more trials: they are kept with the run, and handed to lanes."""
Keep = Callable[[Decision], None]
"""A function that keeps a decision with the run."""


class Decider:
    """A reader that keeps enough trials planned until the paired sequential test decides."""

    def __init__(
        self,
        rounds: Sequence[Sequence[Trial]],
        baseline: Mapping[str, Episode],
        test: PairedSequentialTest,
        *,
        against: str = "",
    ) -> None:
        """`against` names the folder that the `baseline` is of."""
        self._rounds = [list(group) for group in rounds]
        self._baseline = baseline
        self._against = against
        self._runs = PairedRuns(test)
        self._ended: dict[str, Episode] = {}
        self._complete = 0
        self._planned = 0
        self._waiting = 0
        self._ahead = 1
        self._plan: Plan = lambda _: None
        self._keep: Keep = lambda _: None

    @property
    def decision(self) -> Decision:
        """What the test says of the rounds that are complete."""
        return self._runs.decision(self._against)

    @property
    def cap(self) -> int:
        """The most trials that may be planned."""
        return sum(map(len, self._rounds))

    def begin(
        self,
        plan: Plan,
        *,
        planned: Sequence[Trial],
        done: Sequence[Episode],
        ahead: int,
        keep: Keep = lambda _: None,
    ) -> None:
        """Start a run, or go on with one, once it tells its first event. `ahead` is how many trials
        are to wait for lanes at any time. `keep` is called once, as soon as the test decides."""
        self._plan, self._keep = plan, keep
        self._planned = -(-len(planned) // len(self._rounds[0]))
        self._ended = {episode.trial.id: episode for episode in done}
        self._waiting = len(planned) - len(done)
        self._ahead = ahead

    def on(self, event: Event) -> None:
        """Look when rounds are complete; plan more when lanes would run dry."""
        if isinstance(event, RunStarted):
            self._look()
            self._top_up()
        elif isinstance(event, EpisodesSealed):
            self._ended.update({episode.trial.id: episode for episode in event.episodes})
            self._look()
        elif isinstance(event, AttemptsBegan):
            self._waiting -= sum(attempt == 0 for attempt in event.attempts)
            self._top_up()

    def close(self) -> None: ...

    def _look(self) -> None:
        while self._is_undecided() and self._complete < len(self._rounds):
            trials = self._rounds[self._complete]
            if not all(trial.id in self._ended for trial in trials):
                return
            self._complete += 1
            ours = [self._ended[trial.id] for trial in trials]
            theirs = [self._baseline[trial.id].outcome for trial in trials]
            self._runs.see([episode.outcome for episode in ours], theirs)
            if not self._is_undecided():
                self._keep(self.decision)

    def _is_undecided(self) -> bool:
        return self._runs.look.decision == "undecided"

    def _top_up(self) -> None:
        if not self._is_undecided():
            return
        more: list[Trial] = []
        while self._waiting + len(more) < self._ahead and self._planned < len(self._rounds):
            more += self._rounds[self._planned]
            self._planned += 1
        if more:
            self._waiting += len(more)
            self._plan(more)


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


def decider_of(config: EvalConfig, assembly: Assembly) -> Decider:
    """What stops a run that is compared with another, whose folder its configuration names."""
    assert config.against is not None
    against = Path(config.against)
    other = EvalConfig.from_plain(load_run(against))
    for name in ("env_config", "max_steps"):
        if getattr(other, name) != getattr(config, name):
            raise UsageError(
                f"The trials of {config.against} are not those of this run: its {name} is "
                f"{getattr(other, name)!r}, here it is {getattr(config, name)!r}."
            )
    trials = assembly.plan(config.seed, config.episodes)
    with LedgerView.open(against) as ledger:
        baseline = paired_with(trials, ledger.episodes(), config.against)
    rounds = rounds_of(trials)
    bets_on: Stake = "pairs" if assembly.has_independent_starts() else "rounds"
    size = len(rounds[0])
    test = PairedSequentialTest(alpha=config.alpha, pairs_per_round=size, bets_on=bets_on)
    return Decider(rounds, baseline, test, against=str(against.resolve()))
