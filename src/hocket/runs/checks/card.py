"""Writes a run's card, and checks the card of anyone's run by running a sample of its trials."""

from __future__ import annotations

import datetime
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.errors import RunFolderError, UsageError
from hocket.results.card import FILE_NAME, Card, part_of, same_bits
from hocket.results.card_text import eval_results, markdown
from hocket.results.comparing.gap import Gap
from hocket.results.recorded import open_recorded
from hocket.results.stats import Rate
from hocket.results.tables import percent
from hocket.runs.checks.card_plan import (
    CardPlan,
    Rerun,
    config_for,
    rate_on_tasks,
    run_trials,
    setting_gaps,
    what_differs,
)
from hocket.runs.config import EvalConfig
from hocket.system.durable import write_atomic

MARKDOWN = "card.md"
HUB_FOLDER = ".eval_results"
__all__ = ["CardCheck", "check_card", "config_for", "write_card"]

Standing = Literal["equal", "agrees", "refuted", "undecided"]
_WEAKEST: tuple[Standing, ...] = ("refuted", "undecided", "agrees", "equal")


def write_card(
    folder: Path, out: Path, *, dataset: str | None = None, source: str | None = None
) -> list[Path]:
    """Write card.json, card.md and .eval_results/<suite>.yaml of a run into `out`; `source` is the
    address under which the card will be found."""
    run = open_recorded(folder)
    if not run.report.episodes:
        raise RunFolderError(f"No trial of {folder} has ended: there is nothing to put on a card.")
    card = Card.of(run)
    out.mkdir(parents=True, exist_ok=True)
    written = [out / FILE_NAME, out / MARKDOWN]
    card.save(written[0])
    write_atomic(written[1], markdown(card).encode())
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    for suite in run.suites:
        slug = re.sub(r"[^\w.-]+", "-", suite).strip("-.") or "suite"
        path = out / HUB_FOLDER / f"{slug}.yaml"
        path.parent.mkdir(exist_ok=True)
        text = eval_results(card, suite, dataset=dataset or suite, date=today, source=source)
        write_atomic(path, text.encode())
        written.append(path)
    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCheck:
    """What came of running a sample of a card's trials again, and fresh ones beside."""

    of_sample: Standing
    rerun: Rerun
    """The sample."""
    sampled: int
    equal: int
    """Trials that ended alike to the bit: outcome, steps and return."""
    within: float
    """How far apart the rates may be, 0 to 1, for them to agree."""
    differences: tuple[str, ...]
    """What the card says that it was made with, and this run was not, in sentences."""
    seed: int
    """Drew the sample and the fresh starts."""
    fresh_rate: Rate | None
    """The rate from starts that the card does not hold; None where none were run."""
    card_rate: Rate
    """What it is held against."""
    left_out: str
    """What the card says nothing of, and what that may hide; empty where it has all of its plan."""

    @property
    def fresh(self) -> Gap | None:
        """This run less the card, over fresh starts."""
        return None if self.fresh_rate is None else Gap.of_rates(self.fresh_rate, self.card_rate)

    @property
    def of_fresh(self) -> Standing | None:
        """What the fresh starts say; None where none were run."""
        return None if self.fresh_rate is None else _standing(self.fresh, self.within)

    @property
    def standing(self) -> Standing:
        """The weaker of what the sample and the fresh starts say."""
        return min(filter(None, (self.of_sample, self.of_fresh)), key=_WEAKEST.index)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        return " ".join(filter(None, [self._sample_told, self.left_out, self._fresh_told]))

    @property
    def _sample_told(self) -> str:
        if self.of_sample == "equal":
            return f"Verified: all {self.sampled} trials are equal to the card to the bit."
        gap, count = self.rerun.gap, self.rerun.unjudged
        if gap is None:
            return "Too few to tell: no trial of the sample could be judged on both sides."
        without = f", of {count} of which it has no outcome" if count else ""
        told = f"{gap} against the card on {gap.n} trials{without}"
        return (
            f"{self._words(gap)}: {told}; {self.equal} of {self.sampled} equal to the bit."
            f"{self._advice(gap, '--sample')}"
        )

    @property
    def _fresh_told(self) -> str:
        if self.fresh_rate is None:
            return ""
        if self.fresh is None:
            return "Too few to tell: no fresh start could be judged."
        return (
            f"{self._words(self.fresh)} on {self.fresh.n} fresh starts: "
            f"{percent(self.fresh_rate.value)} where the card says {percent(self.card_rate.value)} "
            f"(n = {self.card_rate.n}), {self.fresh}.{self._advice(self.fresh, '--fresh')}"
        )

    def _words(self, gap: Gap) -> str:
        agrees = f"Agrees within ±{100 * gap.reach:.1f} points"
        told: dict[Standing, str] = {"agrees": agrees, "refuted": "Refuted"}
        return told.get(_standing(gap, self.within), "Too few to tell")

    def _advice(self, gap: Gap, flag: str) -> str:
        if gap.agreement(self.within) != "undecided":
            return ""
        within = f"{100 * self.within:.0f}"
        return f" Less than ±{within} points is asked for; give a larger {flag}."


def check_card(
    card: Card,
    config: EvalConfig,
    *,
    sample: int,
    sample_seed: int | None = None,
    fresh: int = 0,
    within: float = 0.1,
    policy: Policy | None = None,
    readers: Sequence[Reader] = (),
) -> CardCheck:
    """Run a random sample of a card's planned trials with an env and a policy that the caller
    chose, and `fresh` more from starts that the card does not hold; say whether the outcomes agree.
    `config` is what `config_for` made of the caller's. Without a `sample_seed` one is drawn that
    nobody could know."""
    if sample < 1 or fresh < 0:
        raise UsageError(f"--sample {sample} --fresh {fresh}: at least 1 and at least 0 are run.")
    if card.report.overall.rate is None:
        raise UsageError("No trial of this card tells success or failure: nothing can be checked.")
    if found := setting_gaps(card, config):
        raise UsageError(
            "The card's trials cannot be paired with those of this check, since (a: this check, b: "
            f"the card) {'; '.join(found)}. Leave the flag out to take what the card says."
        )
    plan = CardPlan.of(card, config)
    seed = secrets.randbits(32) if sample_seed is None else sample_seed
    drawn, new = plan.drawn(sample, seed), plan.fresh(fresh, seed)
    report = run_trials(config, [*drawn, *new], policy=policy, readers=readers)
    ours, theirs = {each.trial: each for each in report.episodes}, card.episodes
    rerun = Rerun.of(report, card, drawn)
    equal = {trial for trial in drawn if trial in theirs and same_bits(ours[trial], theirs[trial])}
    unproven = plan.unjudged(card) - equal
    is_equal = len(equal) == len(drawn) and not unproven & set(plan.trials[: plan.begun])
    return CardCheck(
        of_sample="equal" if is_equal else _standing(rerun.gap, within),
        rerun=rerun,
        sampled=len(drawn),
        equal=len(equal),
        within=within,
        differences=tuple(what_differs(report, card.report)),
        seed=seed,
        fresh_rate=part_of(report, new).overall.success if new else None,
        card_rate=rate_on_tasks(card, new or drawn),
        left_out=plan.left_out(card) if unproven else "",
    )


def _standing(gap: Gap | None, within: float) -> Standing:
    found = "undecided" if gap is None else gap.agreement(within)
    return "refuted" if found == "differs" else found
