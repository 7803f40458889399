"""Runs what a card says again, or the protocol by which a published rate was measured, and judges
the difference of the rates: the same result, another, or too few trials to tell; and what the two
differ in."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.errors import UsageError
from hocket.results.card import Card
from hocket.results.comparing.gap import Agreement, Gap
from hocket.results.report import Report
from hocket.results.run_protocol import RunProtocol
from hocket.results.stats import Rate, rate, wilson
from hocket.results.tables import percent
from hocket.runs.assembly import Assembly
from hocket.runs.checks.card_plan import (
    CardPlan,
    Rerun,
    rate_on_tasks,
    run_trials,
    setting_gaps,
    what_differs,
)
from hocket.runs.config import EvalConfig
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
