from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hocket
from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import AttemptsBegan, EpisodesSealed, Event, RunStarted
from hocket.errors import ConfigError, UsageError
from hocket.records.ledger.view import LedgerView
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.sequential import Decision, PairedRuns, PairedSequentialTest
from hocket.results.comparing.side import Side
from hocket.results.run_folder import rebuild_report
from hocket.results.showing.tally import Tally
from hocket.runs.config import EvalConfig
from hocket.runs.early_stop import Decider, rounds_of
from hocket.runs.run import Run


def trials(tasks: int, seeds: int) -> list[Trial]:
    return [Trial(suite="s", task=f"t{t}", seed=k) for k in range(seeds) for t in range(tasks)]


def episode(trial: Trial, *, won: bool) -> Episode:
    outcome = Outcome.SUCCESS if won else Outcome.FAILURE
    return Episode(trial=trial, attempt=0, outcome=outcome, steps=1, total_reward=0.0)


STARTED = RunStarted(trials=(), done=(), lanes=1, cores=1, policy=hocket.PolicySpec(chunk_length=1))


def decider_of(planned: Sequence[Trial], baseline: dict[str, Episode]) -> Decider:
    rounds = rounds_of(planned)
    return Decider(rounds, baseline, PairedSequentialTest(pairs_per_round=len(rounds[0])))


def play(
    planned: Sequence[Trial], ours: dict[str, bool], theirs: dict[str, bool], order: Any
) -> Decider:
    """Run everything that the decider plans, ending trials in an order of the caller's."""
    baseline = {t.id: episode(t, won=theirs[t.id]) for t in planned}
    decider = decider_of(planned, baseline)
    waiting: list[Trial] = []
    decider.begin(waiting.extend, planned=[], done=[], ahead=4)
    decider.on(STARTED)
    while waiting:
        trial = waiting.pop(order(len(waiting)))
        decider.on(AttemptsBegan(time=0.0, lanes=[0], trials=[trial], attempts=[0]))
        decider.on(EpisodesSealed(time=0.0, episodes=[episode(trial, won=ours[trial.id])]))
    return decider


def test_a_clear_difference_is_decided_long_before_the_cap() -> None:
    planned = trials(2, 200)
    decider = play(
        planned,
        {t.id: True for t in planned},
        {t.id: t.seed % 2 == 0 for t in planned},
        lambda n: 0,
    )
    assert decider.decision.look.decision == "a better"
    assert decider.decision.look.pairs < 60
    assert "this run is better" in decider.decision.told("this run", "runs/a")


def test_no_difference_runs_to_the_cap() -> None:
    planned = trials(2, 30)
    same = {t.id: t.seed % 2 == 0 for t in planned}
    decider = play(planned, same, same, lambda n: 0)
    assert decider.decision.look.decision == "undecided"
    assert decider.decision.look.pairs == 60
    assert "Undecided" in decider.decision.told("this run", "runs/a")


@given(st.randoms(use_true_random=False))
def test_the_order_in_which_trials_end_changes_no_look(random: Any) -> None:
    planned = trials(3, 40)
    rng = np.random.default_rng(0)
    ours = {t.id: bool(rng.random() < 0.9) for t in planned}
    theirs = {t.id: bool(rng.random() < 0.4) for t in planned}
    in_order = play(planned, ours, theirs, lambda n: 0)
    shuffled = play(planned, ours, theirs, random.randrange)
    assert shuffled.decision == in_order.decision


def test_an_error_on_either_side_is_a_tie() -> None:
    planned = trials(1, 40)
    baseline = {t.id: episode(t, won=False) for t in planned}
    decider = decider_of(planned, baseline)
    decider.begin(lambda _: None, planned=planned, done=[], ahead=1)
    decider.on(STARTED)
    broken = [
        Episode(trial=t, attempt=0, outcome=Outcome.ERROR, steps=0, total_reward=0.0)
        for t in planned
    ]
    decider.on(EpisodesSealed(time=0.0, episodes=broken))
    assert (decider.decision.look.only_a, decider.decision.look.only_b) == (0, 0)
    assert decider.decision.error_pairs == 40


def test_a_trial_with_nothing_to_succeed_at_is_a_tie_and_no_error() -> None:
    planned = trials(1, 40)
    runs = PairedRuns(PairedSequentialTest())
    for t in planned:
        finished = episode(t, won=False)._replace(outcome=Outcome.FINISHED)
        runs.see([episode(t, won=True)], [finished])
    decision = runs.decision("runs/a")
    assert (decision.look.only_a, decision.look.decision) == (0, "undecided")
    assert (decision.error_pairs, decision.errors_as_failures) == (0, "undecided")


def test_a_decision_that_rests_on_errors_as_ties_says_so() -> None:
    """The other run's failures crash in the first half of the trials."""
    planned = trials(1, 80)
    baseline = {t.id: episode(t, won=t.seed % 2 == 0) for t in planned}
    decider = decider_of(planned, baseline)
    kept: list[Decision] = []
    decider.begin(lambda _: None, planned=planned, done=[], ahead=1, keep=kept.append)
    ended = [
        Episode(trial=t, attempt=0, outcome=Outcome.ERROR, steps=0, total_reward=0.0)
        if t.seed % 2 == 0
        else episode(t, won=True)
        for t in planned
    ]
    decider.on(EpisodesSealed(time=0.0, episodes=ended))
    (decision,) = kept
    assert decision == decider.decision
    assert decision.look.decision == "a better"
    assert decision.errors_as_failures == "undecided"
    assert f"{decision.error_pairs} pairs with an error" in decision.errors_told("a", "b")
    assert "it would be: undecided" in decision.errors_told("a", "b")
    assert Decision.from_json(json.loads(json.dumps(decision.to_json()))) == decision


def test_every_round_is_looked_at_once_however_often_trials_end() -> None:
    planned = trials(2, 300)
    same = {t.id: t.seed % 2 == 0 for t in planned}
    baseline = {t.id: episode(t, won=same[t.id]) for t in planned}
    asked: list[str] = []

    class Counted(dict[str, Episode]):
        def __getitem__(self, trial: str) -> Episode:
            asked.append(trial)
            return super().__getitem__(trial)

    decider = decider_of(planned, Counted(baseline))
    decider.begin(lambda _: None, planned=planned, done=[], ahead=1)
    decider.on(STARTED)
    for t in planned:
        decider.on(EpisodesSealed(time=0.0, episodes=[episode(t, won=same[t.id])]))
    assert asked == [t.id for t in planned]


def run(tmp_path: Path, name: str, **settings: Any) -> hocket.Report:
    return hocket.evaluate(
        env="toy:count", policy="scripted", lanes=3, out=tmp_path / name, **settings
    )


class Chooses:
    """Wins the trials that it is told to: the toy succeeds at a large first action."""

    spec = hocket.PolicySpec(chunk_length=4, batch_invariant=True)

    def __init__(self, share: int) -> None:
        self.share = share

    def infer(self, batch: hocket.Batch) -> np.ndarray[Any, Any]:
        wins = [row.trial.seed % 10 < self.share for row in batch.rows]
        return np.repeat(np.array(wins, float)[:, None, None], 4, axis=1)

    def close(self) -> None: ...


CAP = 400
"""So many that no lane runs through all that is left while another does a few."""


@pytest.mark.slow
def test_a_run_stops_when_its_comparison_is_decided(tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    settings = {"folder": str(tmp_path / "built"), "lanes": 3}
    common = {
        "env": "support.deciding_env:make",
        "env_config": settings,
        "lanes": 3,
        "episodes": CAP,
    }
    hocket.evaluate(policy=Chooses(2), out=tmp_path / "a", **common)
    against = str(tmp_path / "a")
    config = EvalConfig(
        env=("support.deciding_env:make",),
        env_config=settings,
        policy="chooses",
        lanes=3,
        episodes=CAP,
        until="decided",
        against=against,
    )
    with Run.new(config, tmp_path / "b") as run_b:
        better = run_b.finish(policy=Chooses(9))
        assert run_b.decider is not None
        look = run_b.decider.decision.look
    assert better.complete
    assert look.decision == "a better"
    # The decision, its look and its p stay with the run, and its report says them.
    with LedgerView.open(tmp_path / "b") as ledger:
        kept = Decision.from_json(ledger.meta()["decision"])
    assert (kept.look, kept.against) == (look, str(tmp_path / "a"))
    for report in (better, rebuild_report(tmp_path / "b"), hocket.Report.load(tmp_path / "b")):
        assert report.decision == kept
        assert f"at look {look.number}" in str(report).replace("\n", " ")
        assert "biased" in str(report)
    assert "biased towards that" in (tmp_path / "b" / "report.html").read_text()
    judged = compare_runs(Side.open(tmp_path / "a"), Side.open(tmp_path / "b"), common=True)
    assert judged.comparison.overall.p_value == look.p_value
    assert judged.verdict == "b better"
    assert look.pairs < 60  # What decides is the planned order, whatever the machine's load ...
    assert better.planned < CAP  # ... which only moves how far lanes had run ahead by then.


@pytest.mark.slow
def test_a_run_that_is_never_decided_does_all_that_was_planned(tmp_path: Path) -> None:
    common = {
        "env": "support.deciding_env:make",
        "env_config": {"folder": str(tmp_path)},
        "lanes": 1,
        "episodes": 40,
    }
    hocket.evaluate(policy=Chooses(2), out=tmp_path / "a", **common)
    against = str(tmp_path / "a")
    same = hocket.evaluate(
        policy=Chooses(2), out=tmp_path / "b", until="decided", against=against, **common
    )
    assert same.planned == 40


class Shown:
    """What the display says of a run."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.lanes = 0
        self.left: list[tuple[int, float]] = []
        """Planned trials that have not ended, and the seconds that they take, at each event."""

    def on(self, event: Event) -> None:
        self.tally.on(event)
        if isinstance(event, RunStarted):
            self.lanes = event.lanes
        self.left.append((self.tally.planned - self.tally.done, self.tally.left_s or 0.0))

    def close(self) -> None: ...


def test_a_run_that_may_be_decided_has_the_lanes_of_one_that_is_not(tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "env": "vector:adapters.envs.test_vector:Pendulums",
        "policy": "zero",
        "episodes": 12,
        "max_steps": 3,
    }
    plain, decided = Shown(), Shown()
    hocket.evaluate(out=tmp_path / "a", readers=[plain], **common)
    against = str(tmp_path / "a")
    hocket.evaluate(
        out=tmp_path / "b", until="decided", against=against, readers=[decided], **common
    )
    assert plain.lanes == decided.lanes == 12
    assert min(decided.left) >= (0, 0.0)
    assert decided.tally.planned == decided.tally.done == 12


def test_a_run_against_other_trials_is_refused(tmp_path: Path) -> None:
    run(tmp_path, "a", episodes=3)
    with pytest.raises(UsageError, match="2 of the 5 planned trials"):
        run(tmp_path, "b", episodes=5, until="decided", against=str(tmp_path / "a"))
    with pytest.raises(UsageError, match="max_steps"):
        run(tmp_path, "c", episodes=3, max_steps=9, until="decided", against=str(tmp_path / "a"))
    with pytest.raises(ConfigError, match="go together"):
        run(tmp_path, "d", episodes=3, until="decided")
