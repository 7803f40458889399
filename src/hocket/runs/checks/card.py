"""Writes a run's card, and runs what a card says again: a sample of its trials, to check it, or its
plan, or the protocol by which a published rate was measured. The difference of the rates is judged:
the same result, another, or too few trials to tell; and what the two sides differ in is told."""

from __future__ import annotations

import dataclasses
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
from hocket.results.comparing.gap import Agreement, Gap
from hocket.results.recorded import open_recorded
from hocket.results.report import Report
from hocket.results.run_protocol import RunProtocol
from hocket.results.stats import Rate, rate, wilson
from hocket.results.tables import percent
from hocket.runs.assembly import Assembly
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
from hocket.system.text import counted

_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What came of running a card's plan, or a claim's protocol, or a part of it, once more."""

    gap: Gap | None
    """This run less the card; None where nothing was judged."""
    ours: Rate
    theirs: Rate
    """The card's rate, on the same tasks, or the rate that is claimed."""
    is_paired: bool
    """True if the card has the same trials."""
    protocol: RunProtocol | None = None
    """Of a claim: its protocol, and how far this run is as it says."""
    within: float
    """How far apart the rates may be, 0 to 1, for them to agree."""
    differences: tuple[str, ...]
    """What the card was made with, and this run was not, in sentences."""

    @property
    def standing(self) -> Agreement:
        return "undecided" if self.gap is None else self.gap.agreement(self.within)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.gap is None:
            return "Too few: no trial was judged on both sides."
        how = "paired by trial" if self.is_paired else "not paired, since the starts differ"
        where = "on the card"
        if self.protocol is not None:
            how, where = "not paired, since a claim has no trials", "claimed"
        told = (
            f"{percent(self.ours.value)} here (n = {self.ours.n:,}), {percent(self.theirs.value)} "
            f"{where} (n = {self.theirs.n:,}); {how}: {self.gap}."
        )
        if self.protocol is not None:
            told += f" {self.protocol.sentence}"
        if self.standing == "agrees":
            return f"Agrees within ±{100 * self.gap.reach:.1f} points: {told}"
        if self.standing == "differs":
            return f"Differs: {told}"
        more = self.gap.more_needed(self.within)
        small = "the n of the claim" if self.protocol else "the card's n"
        advice = f"about {more:,} more trials would tell" if more else f"{small} is too small"
        return f"Too few to tell within ±{100 * self.within:.0f} points, {advice}: {told}"

    @property
    def confirms(self) -> bool:
        """True if the rates agree, and a claim was judged by what its protocol says."""
        return self.standing == "agrees" and not (self.protocol and self.protocol.differs)


def reproduce(
    card: Card,
    config: EvalConfig,
    *,
    n: int | None = None,
    seed: int | None = None,
    within: float = 0.05,
    out: Path | None = None,
    policy: Policy | None = None,
    readers: Sequence[Reader] = (),
) -> Reproduction:
    """Run the first `n` trials of a card's plan, or of as many starts from another `seed`, and
    compare. `config` is what `config_for` made of the caller's."""
    if n is not None and n < 1:
        raise UsageError(f"--n is {n}; it must be at least 1.")
    plan = CardPlan.of(card, config)
    trials = plan.trials[:n]
    gaps = setting_gaps(card, config)
    for gap in gaps:
        if gap.startswith("env setting render "):
            raise UsageError(
                "The pictures here are not the card's, so its rate cannot be reproduced: "
                f"{gap} (a: this run, b: the card). Leave --env.render out to take the card's."
            )
    told = [f"trials are others: {gap} (a: this run, b: the card)" for gap in gaps]
    told += [text] if (text := plan.left_out(card)) else []
    if seed not in (None, config.seed):
        told.append(f"seeds begin with {seed} here, {config.seed} on the card")
        config = dataclasses.replace(config, seed=seed)
        trials = tuple(Assembly(config).plan(config.seed, config.episodes))[:n]
    is_paired = not gaps and set(trials) <= set(plan.trials)
    report = run_trials(config, trials, out=out, policy=policy, readers=readers)
    ours, theirs = report.overall.success, rate_on_tasks(card, trials)
    told += _errors_of(report)
    return Reproduction(
        gap=Rerun.of(report, card, trials).gap if is_paired else Gap.of_rates(ours, theirs),
        ours=ours,
        theirs=theirs,
        is_paired=is_paired,
        within=within,
        differences=(*told, *what_differs(report, card.report)),
    )


def _errors_of(report: Report) -> list[str]:
    count = report.overall.errors
    return [f"{counted(count, 'trial')} ended as errors here: no part of n"] if count else []


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRate:
    """A success rate that somebody published."""

    percent: float
    n: int
    """The trials behind it."""

    def __post_init__(self) -> None:
        if not (0 <= self.percent <= _PERCENT and self.n >= 1):
            raise UsageError(
                f"--claim {self.percent:g} --n {self.n} is no rate in per cent of at least 1 trial."
            )

    @property
    def rate(self) -> Rate:
        """With the interval that so many independent trials give."""
        value = self.percent / _PERCENT
        found = rate(round(value * self.n), self.n)
        return dataclasses.replace(found, value=value, interval=wilson(value * self.n, self.n))

    @property
    def doubt(self) -> str:
        """Why no n trials can have given this rate, where that is so; a mean over suites that was
        rounded twice may be such a one."""
        digits = len(f"{self.percent:g}".partition(".")[2])
        nearest = _PERCENT * self.rate.successes / self.n
        if abs(nearest - self.percent) <= 0.5 * 10**-digits + 1e-9:
            return ""
        return f"no {self.n:,} trials give {self.percent:g} %: the nearest is {nearest:.2f} %"


def reproduce_claim(
    claim: PublishedRate,
    config: EvalConfig,
    *,
    within: float = 0.05,
    out: Path | None = None,
    policy: Policy | None = None,
    readers: Sequence[Reader] = (),
) -> Reproduction:
    """Run what the configuration's protocol plans, as far as the configuration leaves it, and
    compare with what is claimed."""
    trials = Assembly(config).plan(config.seed, config.episodes)
    told = [claim.doubt] if claim.doubt else []
    if len(trials) != claim.n:
        told.append(f"the claim is of {counted(claim.n, 'trial')}, this run of {len(trials):,}")
    report = run_trials(config, trials, out=out, policy=policy, readers=readers)
    told += _errors_of(report)
    protocol = RunProtocol.of(report.provenance)
    if protocol is None:
        raise UsageError("A claim is judged by a protocol: give --protocol NAME.")
    return Reproduction(
        gap=Gap.of_rates(report.overall.success, claim.rate),
        ours=report.overall.success,
        theirs=claim.rate,
        is_paired=False,
        protocol=protocol,
        within=within,
        differences=(*told, *protocol.part, *protocol.differs),
    )


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
