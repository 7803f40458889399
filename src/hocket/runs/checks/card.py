"""Writes a run's card, and checks the card of anyone's run by running a sample of its trials."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.core.data import Outcome, Trial
from hocket.errors import RunFolderError, UsageError
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.results.card import FILE_NAME, Card, same_bits, with_trials
from hocket.results.card_text import eval_results, markdown
from hocket.results.comparing.compare import RunComparison, compare_runs, signed
from hocket.results.comparing.side import Side
from hocket.results.recorded import open_recorded
from hocket.runs.config import EvalConfig
from hocket.runs.run import Run
from hocket.system.durable import write_atomic

MARKDOWN = "card.md"
HUB_FOLDER = ".eval_results"
_RERUN = (
    *("replan", "ensemble", "delay", "method", "first_chunk"),
    *("max_steps", "exact"),
)
"""Settings that a card's numbers are about, and that a check of it therefore takes from it. None of
them names a file or any code."""

Standing = Literal["equal", "agrees", "refuted", "undecided"]


def write_card(folder: Path, out: Path, *, dataset: str | None = None) -> list[Path]:
    """Write card.json, card.md and .eval_results/<suite>.yaml of a run into `out`."""
    run = open_recorded(folder)
    if not run.report.episodes:
        raise RunFolderError(f"No trial of {folder} has ended: there is nothing to put on a card.")
    is_independent = False
    if RunFolder.at(folder).ledger.exists():
        with LedgerView.open(folder) as ledger:
            is_independent = bool(ledger.meta().get("independent_starts", False))
    card = Card.of(run, independent_starts=is_independent)
    out.mkdir(parents=True, exist_ok=True)
    written = [out / FILE_NAME, out / MARKDOWN]
    card.save(written[0])
    write_atomic(written[1], markdown(card).encode())
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    for suite in run.suites:
        slug = re.sub(r"[^\w.-]+", "-", suite).strip("-.") or "suite"
        path = out / HUB_FOLDER / f"{slug}.yaml"
        path.parent.mkdir(exist_ok=True)
        text = eval_results(card, suite, dataset=dataset or suite, date=today)
        write_atomic(path, text.encode())
        written.append(path)
    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCheck:
    """What came of running a sample of a card's trials again."""

    standing: Standing
    comparison: RunComparison
    """a is the new run, b the card."""
    sampled: int
    equal: int
    """Trials that ended alike to the bit: outcome, steps and return."""
    within: float
    """How far apart the rates may be, 0 to 1, for them to agree."""
    differences: tuple[str, ...]
    """What the card says it was made with, and this run was not."""

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        found = self.comparison.comparison.overall
        if self.standing == "equal":
            return f"Verified: all {self.sampled} trials are equal to the card to the bit."
        if found.interval is None or found.value is None:
            return "Too few to tell: no trial of the sample could be judged on both sides."
        low, high = found.interval.low, found.interval.high
        told = (
            f"{signed(found.value, percents=True)} points against the card on {found.n} trials, "
            f"95 % interval [{signed(low, percents=True)}, {signed(high, percents=True)}]; "
            f"{self.equal} of {self.sampled} equal to the bit."
        )
        reach = 100 * max(abs(low), abs(high))
        if self.standing == "agrees":
            return f"Agrees within ±{reach:.1f} points: {told}"
        if self.standing == "refuted":
            return f"Refuted: {told}"
        return (
            f"Too few to tell: {told} Less than ±{100 * self.within:.0f} points is asked for; give "
            "a larger --sample."
        )


def check_card(
    card: Card,
    config: EvalConfig,
    *,
    sample: int,
    sample_seed: int = 0,
    within: float = 0.1,
    policy: Policy | None = None,
    readers: Sequence[Reader] = (),
) -> CardCheck:
    """Run a random sample of a card's trials with an env and a policy that the caller chose, and
    say whether the outcomes agree. `config` has them; what else the card's numbers are about
    (replan, start scheme, step limit ...) it must have from `config_for`."""
    trials = sample_trials(card, config, sample, sample_seed)
    with Run(config, trials) as run:
        report = run.finish(policy=policy, readers=readers)
    if not report.complete:
        raise UsageError("The check was interrupted; nothing can be said of the card.")
    chosen = with_trials(card, trials)
    ours = Side.of_report(report, Path("this run"), trials)
    found = compare_runs(ours, Side.of_card(chosen, Path("card")))
    theirs = chosen.episodes
    equal = sum(same_bits(episode, theirs[episode.trial]) for episode in report.episodes)
    return CardCheck(
        standing=_standing(found, equal=equal, sampled=len(trials), within=within),
        comparison=found,
        sampled=len(trials),
        equal=equal,
        within=within,
        differences=tuple(_differences(card, config)),
    )


def config_for(card: Card, config: EvalConfig) -> EvalConfig:
    """The configuration of a check: the caller's, with the card's settings that its numbers are
    about."""
    theirs = card.report.config
    plain = {**config.to_plain(), **{k: theirs[k] for k in _RERUN if k in theirs}}
    plain["env_config"] |= _start_scheme(card)
    return EvalConfig.from_plain({**plain, "record": "none", "video": "none"})


def _start_scheme(card: Card) -> dict[str, str]:
    """The setting of the card's envs that says how seeds become starts, where one has it."""
    known = [card.report.config.get("env_config", {})]
    known += dict(card.report.provenance.get("settings", {})).values()
    found = [each["start_scheme"] for each in known if "start_scheme" in dict(each)]
    return {"start_scheme": str(found[0])} if found else {}


def sample_trials(card: Card, config: EvalConfig, sample: int, seed: int) -> list[Trial]:
    """Trials of the card that could be judged, drawn without replacement, in the card's order."""
    suites = list(dict.fromkeys(trial.suite for trial in card.trials))
    if set(suites) - set(config.env):
        raise UsageError(
            f"The card is of {', '.join(suites)}, but --env names {', '.join(config.env)}: trials "
            "are the same only in the same env. Name the card's; it is not imported by itself."
        )
    judged = [
        episode.trial
        for episode in card.report.episodes
        if episode.outcome in (Outcome.SUCCESS, Outcome.FAILURE)
    ]
    if not judged:
        raise UsageError("No trial of this card tells success or failure: nothing can be checked.")
    if sample < 1:
        raise UsageError(f"--sample is {sample}; it must be at least 1.")
    count = min(sample, len(judged))
    chosen = np.random.default_rng(seed).choice(len(judged), count, replace=False)
    return [judged[index] for index in sorted(chosen.tolist())]


def _standing(found: RunComparison, *, equal: int, sampled: int, within: float) -> Standing:
    if equal == sampled:
        return "equal"
    overall = found.comparison.overall
    if overall.interval is None:
        return "undecided"
    low, high = overall.interval.low, overall.interval.high
    if low > 0 or high < 0:
        return "refuted"
    return "agrees" if max(-low, high) <= within else "undecided"


def _differences(card: Card, config: EvalConfig) -> list[str]:
    """The names and settings of a card that differ from what was run, as sentences."""
    theirs, ours = card.report.config, config.to_plain()
    found = []
    for key in ("policy", "policy_config"):
        if theirs.get(key) != ours.get(key):
            found.append(f"{key} is {ours.get(key)!r} here, {theirs.get(key)!r} on the card")
    return found
