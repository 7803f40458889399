"""One of two runs that are compared, what a sequential test says of the two, and what they differ
in, in words: plans, the settings that make a trial, versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core import plugins
from hocket.core.data import Array, Episode, Exactness, Outcome, Trial
from hocket.core.plugins import share_settings
from hocket.errors import HocketError
from hocket.records.folder import RunFolder
from hocket.records.ledger.episodes import COLUMNS, OUTCOMES, Episodes, Trials, common_rows
from hocket.records.ledger.view import LedgerView
from hocket.records.run_file import load_about
from hocket.results.card import Card, is_card
from hocket.results.comparing.sequential import KEY, Decision, PairedRuns, PairedSequentialTest
from hocket.results.exactness import Claim, kept_claim
from hocket.results.report import Report
from hocket.results.stats import LEVEL

_OURS = ("hocket", "python")
"""Versions that do not change what a trial is."""
_NOT_SUBJECT = ("env", "env_config", "episodes", "seed", "max_steps")
"""Settings that make the trials, and so are no part of what is compared."""
_SHOWN = 4
Sides = tuple[str, str]
IN_RUNS: Sides = ("in a", "in b")


def setting_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], sides: Sides = IN_RUNS
) -> list[str]:
    """The settings that make trials of the same name different ones, one phrase each."""
    found = []
    if a.get("max_steps") != b.get("max_steps"):
        found.append(differs("max_steps", a.get("max_steps"), b.get("max_steps"), sides))
    if a.get("env_config") == b.get("env_config"):
        return found
    # What is not set has a default, which may be what the other run says.
    left, right = _effective(a), _effective(b)
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            found.append(differs(f"env setting {name}", left.get(name), right.get(name), sides))
    return found


def subject_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a comparison is about: each setting that differs, with its value in a and in b."""
    left, right = _flat(a), _flat(b)
    return [
        (name, _shown(left.get(name)), _shown(right.get(name)))
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name) and name.partition(".")[0] not in _NOT_SUBJECT
    ]


def trial_differences(a: Sequence[Trial], b: Sequence[Trial]) -> list[str]:
    """The tasks and seeds that only one of two plans has, one phrase each."""
    found = []
    tasks_a, tasks_b = _seeds(a), _seeds(b)
    for letter, mine, other in (("a", tasks_a, tasks_b), ("b", tasks_b, tasks_a)):
        only = [" / ".join(task) for task in mine if task not in other]
        if only:
            found.append(f"only {letter} has {_listed('task', only)}")
    for letter, mine, other in (("a", tasks_a, tasks_b), ("b", tasks_b, tasks_a)):
        groups: dict[str, list[str]] = {}
        for task in mine.keys() & other.keys():
            only_seeds = mine[task] - other[task]
            if only_seeds:
                groups.setdefault(_ranges(only_seeds), []).append(task[1])
        common = len(mine.keys() & other.keys())
        for seeds, some in groups.items():
            where = "" if len(some) == common else f" of {_listed('task', sorted(some))}"
            found.append(f"only {letter} has seeds {seeds}{where}")
    return found


def version_differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """The packages whose versions differ and may change what a simulator does."""
    names = [name for name in dict.fromkeys([*a, *b]) if name not in _OURS]
    return [differs(n, a.get(n), b.get(n)) for n in names if a and b and a.get(n) != b.get(n)]


def _effective(config: Mapping[str, Any]) -> dict[str, Any]:
    """The env's settings with their defaults, where its adapter is one of the registered ones:
    reading a run imports no code that only the run names."""
    given = dict(config.get("env_config") or {})
    envs = [str(name) for name in config.get("env") or ()]
    if not envs or any(name.partition(":")[0] not in plugins.names("envs") for name in envs):
        return given
    try:
        for name, share in share_settings("envs", envs, given).items():
            adapter = plugins.find("envs", name)
            given = {**dataclasses.asdict(plugins.configure(adapter, share)), **given}
    except HocketError:
        return given
    return given


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": each for inner, each in _flat(value).items()}
        else:
            flat[key] = value
    return flat


def _seeds(trials: Sequence[Trial]) -> dict[tuple[str, str], set[tuple[int, int]]]:
    found: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for trial in trials:
        found.setdefault((trial.suite, trial.task), set()).add((trial.seed, trial.repeat))
    return found


def _ranges(seeds: Collection[tuple[int, int]]) -> str:
    """Seeds as text, such as `0 to 4, 9`; repeats are left unsaid."""
    runs: list[list[int]] = []
    for seed in sorted({seed for seed, _ in seeds}):
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    words = [str(low) if low == high else f"{low} to {high}" for low, high in runs]
    more = f" and {len(words) - _SHOWN:,} more ranges" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


def _listed(noun: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{noun if len(names) == 1 else noun + 's'} {', '.join(names[:_SHOWN])}{more}"


def differs(name: str, a: Any, b: Any, sides: Sides = IN_RUNS) -> str:
    """A difference in words; `sides` say where each value is."""
    return f"{name} is {_shown(a)} {sides[0]}, {_shown(b)} {sides[1]}"


def _shown(value: Any) -> str:
    return "not set" if value in (None, "") else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    folder: Path
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    claim: Claim
    trials: Trials
    """All that were planned, in planned order."""
    ended: Episodes
    """The episodes of those that ended, errors included; numbers of them alone where no more was
    asked for."""
    decision: Decision | None = None
    """What the comparison that this run was to decide came to."""
    independent_starts: bool = False
    """True if its trials of one seed start independently of each other."""

    @classmethod
    def open(cls, folder: str | Path, columns: Sequence[str] = COLUMNS) -> Side:
        """Read a run folder: its ledger, of which NUMBERS are enough to compare, or its report
        where it has none; or a card."""
        if is_card(Path(folder)):
            card = Card.load(Path(folder))
            return cls.of_report(card.report, Path(folder).absolute(), card.trials)
        root = RunFolder.at(Path(folder))
        if not root.ledger.exists():
            report = Report.load(root.root)
            return cls.of_report(report, root.root, report.episodes.trials)
        about = load_about(root.root)
        with LedgerView.open(root) as ledger:
            meta, (trials, ended) = ledger.meta(), ledger.read(columns)
            return cls(
                folder=root.root,
                config=meta.get("config", {}),
                versions=_versions(about),
                claim=kept_claim(ledger, about),
                trials=trials,
                ended=ended,
                decision=Decision.from_json(meta[KEY]) if KEY in meta else None,
                independent_starts=bool(meta.get("independent_starts", False)),
            )

    @classmethod
    def of_report(cls, report: Report, path: Path, trials: Sequence[Trial]) -> Side:
        """What a report says of a run with these trials; `path` is what it is called by."""
        return cls(
            folder=path,
            config=report.config,
            versions=_versions(report.provenance),
            claim=report.claim,
            trials=trials if isinstance(trials, Trials) else Trials.of(trials),
            ended=report.episodes,
            decision=report.decision,
            independent_starts=report.independent_starts,
        )

    @property
    def episodes(self) -> Mapping[Trial, Episode]:
        """The episode of each trial that ended."""
        return self.ended.by_trial

    def of_plan(self, column: str, missing: float) -> Array:
        """A column of the episodes, with a row for each planned trial."""
        values = self.ended.columns[column]
        known = np.full(len(self.trials), missing, values.dtype)
        planned, ended = common_rows(self.trials, self.ended.trials)
        known[planned] = values[ended]
        return known

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def exactness(self) -> Exactness:
        return self.claim.level

    @property
    def policy(self) -> str:
        return str(self.config.get("policy", "?"))

    @property
    def subject(self) -> str:
        """The policy, and how the world went on while it thought, where it did."""
        method = self.config.get("method") or "pause"
        if method == "pause":
            return self.policy
        return f"{self.policy} --delay {self.config.get('delay', 0)} --method {method}"

    @property
    def complete(self) -> bool:
        return len(self.ended) == len(self.trials)

    @property
    def stops_when_decided(self) -> bool:
        return self.config.get("until") == "decided"

    @property
    def errors(self) -> int:
        return len(self.ended.rows(Outcome.ERROR))


def _versions(about: Mapping[str, Any]) -> Mapping[str, str]:
    versions = about.get("versions")
    return versions if isinstance(versions, dict) else {}


def decide(a: Side, b: Side, trials: Trials, ours: Array, theirs: Array) -> Decision:
    """What the sequential test says of the complete rounds at the beginning of the plan, each of
    one trial for each task; `ours` and `theirs` are outcomes. Where one run stopped by its
    comparison with the other, the decision that stopped it stands, with the interval of all that
    was run."""
    rounds: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(trials.seed.tolist(), trials.repeat.tolist(), strict=True)):
        rounds.setdefault(key, []).append(row)
    size = max(map(len, rounds.values()))
    are_independent = a.independent_starts and b.independent_starts
    stopped = next((side for side in (a, b) if side.stops_when_decided), a)
    test = PairedSequentialTest(
        alpha=stopped.config.get("alpha", 1 - LEVEL),
        pairs_per_round=size,
        bets_on="pairs" if are_independent else "rounds",
    )
    runs = PairedRuns(test)
    for some in rounds.values():
        codes = [side[some].tolist() for side in (ours, theirs)]
        if min(map(min, codes)) < 0:
            break
        if len(some) == size:
            runs.see(*([OUTCOMES[code] for code in side] for side in codes))
    computed = runs.decision(str(b.folder.resolve()))
    kept = _kept_decision(a, b)
    return computed if kept is None else dataclasses.replace(kept, interval=computed.interval)


def _kept_decision(a: Side, b: Side) -> Decision | None:
    """The decision that one of two runs keeps about the other, as seen from a."""
    homes = [str(side.folder.resolve()) for side in (a, b)]
    if a.decision is not None and a.decision.against == homes[1]:
        return a.decision
    if b.decision is not None and b.decision.against == homes[0]:
        return b.decision.mirrored(homes[1])
    return None
