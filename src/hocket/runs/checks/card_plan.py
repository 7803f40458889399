"""What a check of a card runs: the card's plan, in an env and with a policy that the user named,
under the card's settings.

A card from a stranger is data. Values of settings are taken from it: numbers, choices, and texts
that an adapter's `Config` lists as `plain_texts`. What may name code, a file, a host or an
interpreter is shown instead, in the command by which the user confirms it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from hocket.core import plugins
from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.core.data import Outcome, Trial
from hocket.errors import HocketError, UsageError
from hocket.results.card import GROUPS, RERUN, Card, part_of, settings_of
from hocket.results.card_text import check_command
from hocket.results.comparing.compare import RunComparison, compare_runs
from hocket.results.comparing.config_diff import setting_differences, subject_differences
from hocket.results.comparing.gap import Gap
from hocket.results.comparing.side import Side
from hocket.results.report import Report
from hocket.results.stats import LEVEL, Interval, Rate
from hocket.results.tables import percent
from hocket.runs.assembly import Assembly
from hocket.runs.config import EvalConfig
from hocket.runs.early_stop import rounds_of
from hocket.runs.run import Run
from hocket.system.text import counted, printable

JUDGED = (Outcome.SUCCESS, Outcome.FAILURE)
_PLAN = ("seed", "episodes")
_CONFIRMED = ("policy", "env_python", "policy_python", "runtime")
"""What only the user says, and the command by which a card is checked repeats."""
_PARTS = ("files", "policy", "chunks", "tasks", "envs", "versions", "settings", "code", "hardware")
"""What provenance says, in the order in which differences of it matter."""
_NAMES_SOMETHING = re.compile(r"[:/\\~]|\.\w+$")
"""A text like a module, a file, a folder or a URL."""
_LAST = 1 << 63
_FRESH_SEEDS = 1 << 31
"""Fresh seeds lie below, where they can: some simulators take 32 bits, with a sign."""
_LONGEST = 60


def config_for(card: Card, config: EvalConfig, given: Collection[str] = ()) -> EvalConfig:
    """The configuration of a check: the caller's, with the card's plan and its settings. What the
    caller set, or has in `given` (as `replan`, `env.size`), stays as it is."""
    theirs, plain = card.report.config, config.to_plain()
    if set(theirs["env"]) != set(config.env):
        raise UsageError(
            f"The card is of {', '.join(theirs['env'])}, but --env names {', '.join(config.env)}: "
            "trials are the same only in the same env. Name the card's; it is not imported by "
            "itself."
        )
    said = {*given, *(f"{group}.{key}" for group in GROUPS for key in _group(plain, group))}
    values, names = _sorted_settings(card, config)
    if "file" in str(theirs.get("perturb")):
        names["perturb"] = theirs["perturb"]
    if unconfirmed := sorted(names.keys() - said):
        chosen = {key: plain[key] for key in _CONFIRMED if plain.get(key) not in (None, "auto")}
        raise UsageError(
            f"The card was made with {', '.join(unconfirmed)}, which may name code, a file or a "
            "place: such is never taken from a card. Look at it, then confirm it or put your own "
            f"in its place: {check_command({**theirs, **chosen}, card.path)}"
        )
    keys = (*_PLAN, *(key for key in RERUN if key not in said))
    taken = {key: theirs[key] for key in keys if key in theirs}
    for group in GROUPS:
        found = {
            key.removeprefix(f"{group}."): value
            for key, value in values.items()
            if key.startswith(f"{group}.") and key not in said
        }
        taken[f"{group}_config"] = {**found, **_group(plain, group)}
    return EvalConfig.from_plain(
        {**plain, **taken, "env": theirs["env"], "record": "none", "video": "none"}
    )


def _sorted_settings(card: Card, config: EvalConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The card's settings for what the user named, such as `env.size`: those that are values, and
    those that may name something. A policy of another kind has settings of its own."""
    values: dict[str, Any] = {}
    names: dict[str, Any] = {}
    theirs = card.report.config
    for group in GROUPS:
        if group == "policy" and _kind(theirs["policy"]) != _kind(config.policy):
            continue
        owners = _owners(group, config)
        for key, value in {**_drawn_by(card, owners), **_group(theirs, group)}.items():
            own = [owner for owner in owners if _declares(owner, key)]
            is_value = all(_is_value(value, owner, key) for owner in own)
            (values if own and is_value else names)[f"{group}.{key}"] = value
    return values, names


def _group(plain: Mapping[str, Any], group: str) -> dict[str, Any]:
    return dict(plain.get(f"{group}_config", {}))


def _kind(policy: str) -> str:
    """What two names of policies share where their settings mean the same: the adapter, or the
    name of the class or function. Nothing is opened or imported to tell it."""
    head, _, rest = policy.partition(":")
    return head if head in plugins.names("policies") else rest.rpartition(":")[2] or rest


def _owners(group: str, config: EvalConfig) -> list[type[Any]]:
    """The classes that declare the settings of what the user named; none where they are known in
    another interpreter alone."""
    if group == "rtc":
        from hocket.adapters.policies.rtc import RtcConfig

        return [RtcConfig]
    if group == "env":
        return [plugins.find("envs", name).config_class for name in config.env]
    try:
        return [plugins.find("policies", config.policy).config_class]
    except (HocketError, ImportError):
        return []


def _declares(owner: type[Any], key: str) -> bool:
    return key in {field.name for field in dataclasses.fields(owner)}


def _drawn_by(card: Card, owners: Sequence[type[Any]]) -> dict[str, Any]:
    """How seeds became the card's starts, where its envs said so and ours can be told."""
    settings = card.report.provenance.get("settings")
    for each in settings.values() if isinstance(settings, Mapping) else ():
        is_told = isinstance(each, Mapping) and "start_scheme" in each
        if is_told and any(_declares(owner, "start_scheme") for owner in owners):
            return {"start_scheme": each["start_scheme"]}
    return {}


def _is_value(value: Any, owner: type[Any], key: str) -> bool:
    """True if a setting is a number, a choice, or a text that can name nothing."""

    def fits(value: Any, hint: Any) -> bool:
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Literal:
            return value in inner
        if origin in (Union, UnionType):
            return any(fits(value, part) for part in inner)
        if origin is tuple:
            parts = [part for part in inner if part is not ...]
            return isinstance(value, list) and all(
                any(fits(each, part) for part in parts) for each in value
            )
        if type(value) is str:
            is_plain = hint is str and key in getattr(owner, "plain_texts", ())
            return is_plain and not _NAMES_SOMETHING.search(value)
        if type(value) is int:
            return hint in (int, float) and abs(value) < _LAST
        return hint in (bool, float, type(None)) and type(value) is hint

    return fits(value, get_type_hints(owner).get(key))


# -- what is said of it ----------------------------------------------------------------------------


def settings_told(card: Card, config: EvalConfig) -> list[str]:
    """What the user must know before anything runs: which settings of a check are the card's and
    not the defaults, and which are not the card's."""
    theirs = card.report.config
    ours, others = settings_of(config.to_plain()), settings_of(theirs)
    taken = [f"{key} {_shown(ours[key])}" for key in ours if ours[key] == others.get(key)]
    told = [f"The card's settings that are not the defaults: {', '.join(taken)}."] if taken else []
    return told + [
        f"{key} is {_shown(ours.get(key))} here, {_shown(others.get(key))} on the card"
        for key in dict.fromkeys([*ours, *others])
        if ours.get(key) != others.get(key)
    ]


def what_differs(ours: Report, theirs: Report) -> list[str]:
    """What a card says that its numbers depend on, where this run had something else."""
    policies = [_shown(report.config["policy"]) for report in (ours, theirs)]
    is_other = policies[0] != policies[1]
    told = ["policy is {} here, {} on the card".format(*policies)] if is_other else []
    for part in _PARTS:
        left, right = (_dict_of(report.provenance.get(part)) for report in (ours, theirs))
        if left and not right:
            told.append(f"The card says nothing of its {part}.")
            continue
        if part in ("tasks", "settings", "envs"):
            left, right = ({k: side[k] for k in left if k in right} for side in (left, right))
        found: dict[tuple[str, str, str], int] = {}
        if part == "policy" and is_other:  # told already
            left, right = ({**side, "class": None} for side in (left, right))
        for name, a, b in subject_differences(left, right):
            if told and (part, name) == ("policy", "class"):
                continue  # Its name says so already.
            key = name.rpartition(".")[2] if part == "tasks" else name
            found[key, a, b] = found.get((key, a, b), 0) + 1
        for (key, a, b), count in found.items():
            where = f" ({counted(count, 'task')})" if part == "tasks" else ""
            told.append(f"{part} {_shown(key)}: {_shown(a)} here, {_shown(b)} on the card{where}")
    return told


def _dict_of(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _shown(value: Any) -> str:
    text = "the default" if value is None else printable(str(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


# -- the plan --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """The trials that a card's protocol fixes: its suite's tasks, each from as many starts."""

    trials: tuple[Trial, ...]
    begun: int
    """How many of them, from the first on, were to be run: all, but where the run stopped once it
    was decided."""

    @classmethod
    def of(cls, card: Card, config: EvalConfig) -> CardPlan:
        """The plan, which only the suite and the card's seed and episodes make; a card that holds
        other trials is refused."""
        if any(key not in card.report.config for key in _PLAN):
            raise UsageError("The card does not say which starts were planned: no seed, episodes.")
        trials = Assembly(config).plan(config.seed, config.episodes)
        held = {trial: index for index, trial in enumerate(trials)}
        strange = [trial for trial in card.trials if trial not in held]
        if strange:
            raise UsageError(
                f"{counted(len(strange), 'trial')} of the card are not of its plan, which is each "
                f"task of {', '.join(config.env)} from seeds {config.seed} to "
                f"{config.seed + config.episodes - 1}: the first is {strange[0].id}."
            )
        begun = len(trials)
        if card.report.config.get("until") == "decided":
            size = len(rounds_of(trials)[0])
            last = max(map(held.__getitem__, card.trials), default=0)
            begun = (last // size + 1) * size
        return cls(trials=tuple(trials), begun=begun)

    def unjudged(self, card: Card) -> set[Trial]:
        """The planned trials that a card has no outcome of: it lacks them, or they are errors."""
        ended = {e.trial for e in card.report.episodes if e.outcome is not Outcome.ERROR}
        return set(self.trials) - ended

    def left_out(self, card: Card) -> str:
        """How much the trials that a card has no outcome of could change, in words."""
        rates = (
            part_of(card.report, self.trials, unjudged_failed=True).overall,
            card.report.overall,
        )
        worst, told = (percent(score.rate) for score in rates)
        missing = len(self.trials) - len(card.report.episodes)
        said = (
            f"Of {len(self.trials):,} planned trials {missing:,} are missing from the card and "
            f"{card.report.overall.errors:,} are errors: had all of these failed, its rate would "
            f"be {worst}, not {told}."
        )
        if self.begun < len(self.trials):
            said += (
                f" The run stopped after {self.begun:,}, once a comparison was decided: its rate "
                "is biased towards that decision."
            )
        return said if self.unjudged(card) else ""

    def drawn(self, count: int, seed: int) -> list[Trial]:
        """So many of the trials that were to be run, in planned order."""
        rng = np.random.default_rng(seed)
        chosen = rng.choice(self.begun, min(count, self.begun), replace=False)
        return [self.trials[index] for index in sorted(chosen.tolist())]

    def fresh(self, count: int, seed: int) -> list[Trial]:
        """So many trials from starts after the plan's, of all tasks alike."""
        rng = np.random.default_rng([seed, 1])
        first = max(trial.seed for trial in self.trials) + 1
        room = max(_FRESH_SEEDS - first, _FRESH_SEEDS // 2)
        seeds = first + rng.choice(room, count, replace=False)
        tasks = list(dict.fromkeys((trial.suite, trial.task) for trial in self.trials))
        order = [tasks[index] for index in rng.permutation(len(tasks))]
        return [
            Trial(suite, task, int(seed))
            for (suite, task), seed in zip(itertools.cycle(order), seeds, strict=False)
        ]


def setting_gaps(card: Card, config: EvalConfig) -> list[str]:
    """What makes trials of the same name other trials in a check (a) than on the card (b). A file
    that the user confirmed may lie elsewhere."""
    values, names = _sorted_settings(card, config)
    own = {key: each for key, each in config.env_config.items() if f"env.{key}" in names}
    same = {key.partition(".")[2]: each for key, each in values.items() if key.startswith("env.")}
    theirs = {**card.report.config, "env_config": {**same, **own}}
    return setting_differences(config.to_plain(), theirs)


def run_trials(
    config: EvalConfig,
    trials: Sequence[Trial],
    *,
    out: Path | None = None,
    policy: Policy | None = None,
    readers: Sequence[Reader] = (),
) -> Report:
    """Run these trials, in a folder that stays where it is named."""
    with contextlib.ExitStack() as stack:
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        with Run.new(config, out, trials) as run:
            report = run.finish(policy=policy, readers=readers)
    if not report.complete:
        raise KeyboardInterrupt
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """Planned trials of a card, run again."""

    comparison: RunComparison | None
    """Those that both sides judged: a is the new run, b the card."""
    gap: Gap | None
    """The new run less the card, with those that only the new run judged against the card's rate:
    what a card leaves out counts as it ends here."""
    unjudged: int
    """How many of them the new run alone judged."""

    @classmethod
    def of(cls, report: Report, card: Card, trials: Sequence[Trial]) -> Rerun:
        theirs = {each.trial for each in card.report.episodes if each.outcome in JUDGED}
        ours = {each.trial for each in report.episodes if each.outcome in JUDGED}
        held = [trial for trial in trials if trial in theirs]
        others = [trial for trial in trials if trial in ours - theirs]
        claimed = card.report.overall.success
        stated = claimed.value or 0.0
        exact = Interval(low=stated, high=stated, level=LEVEL, method="stated")
        claimed = dataclasses.replace(claimed, interval=exact)
        found = None
        if held:
            a = Side.of_report(part_of(report, held), Path("this run"), held)
            # What their settings differ in was told, or refused, before anything ran.
            part = dataclasses.replace(part_of(card.report, held), config=report.config)
            found = compare_runs(a, Side.of_report(part, Path("card"), held))
        parts = [
            None if found is None else Gap.of_pairs(found.comparison.overall),
            Gap.of_rates(part_of(report, others).overall.success, claimed),
        ]
        return cls(comparison=found, gap=Gap.joined(parts), unjudged=len(others))


def rate_on_tasks(card: Card, trials: Sequence[Trial]) -> Rate:
    """The card's rate on the tasks that these trials are of."""
    tasks = {(trial.suite, trial.task) for trial in trials}
    some = [trial for trial in card.trials if (trial.suite, trial.task) in tasks]
    return part_of(card.report, some).overall.success
