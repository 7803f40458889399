"""A result card: one file that says what a run came to, what it depends on, and how every trial
ended, so that anyone can pair a run against it, or check it, without the run's folder.

Names in a card are data. They are shown and compared; nothing is ever imported or opened by them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.core.data import Episode, Outcome, Trial
from hocket.errors import RunFolderError
from hocket.records import formats
from hocket.results.exactness import Claim
from hocket.results.recorded import RecordedRun
from hocket.results.report import Report, Throughput, read_json, write_json

FILE_NAME = "card.json"
LETTERS: Mapping[Outcome, str] = {
    Outcome.SUCCESS: "S",
    Outcome.FAILURE: "F",
    Outcome.FINISHED: "D",
    Outcome.ERROR: "E",
}
"""How trials end, one letter each; `D`, done, where there is nothing to succeed at."""
_REPORTED = (
    *("hocket", "config", "exactness", "checks", "unseeded", "complete", "planned"),
    *("overall", "suites", "tasks"),
)
"""What a card has as the report has it."""
_PENDING = "-"
_OUTCOMES = {letter: outcome for outcome, letter in LETTERS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a card says."""

    report: Report
    """Scored anew from the trials: what the card says of rates is not believed, but counted."""
    trials: tuple[Trial, ...]
    """All that were planned."""
    independent_starts: bool = False

    @classmethod
    def of(cls, run: RecordedRun, *, independent_starts: bool = False) -> Card:
        return cls(
            report=run.report, trials=tuple(run.trials), independent_starts=independent_starts
        )

    def to_json(self) -> dict[str, Any]:
        report = self.report.to_json()
        return {
            "format": formats.CARD.number,
            **{key: report[key] for key in _REPORTED if key in report},
            "provenance": report.get("provenance", {}),
            "independent_starts": self.independent_starts,
            "letters": {letter: outcome.value for outcome, letter in LETTERS.items()},
            "trials": _packed(self.trials, self.report.episodes),
        }

    def save(self, path: Path) -> None:
        """Write the card, whole or not at all: one key, or one task, on a line."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Card:
        """Read a card; one that says anything impossible is refused."""
        document = read_json(path)
        if not isinstance(document, dict) or "hocket" not in document:
            raise RunFolderError(f"{path} is no card of hocket's.")
        formats.CARD.check(path, document.get("format"))
        try:
            trials, episodes = _unpacked(document["trials"])
            report = Report.build(
                config=_config(document["config"]),
                claim=Claim.from_json(document),
                trials=trials,
                episodes=episodes,
                throughput=Throughput(),
                provenance=dict(document.get("provenance", {})),
                version=str(document["hocket"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunFolderError(f"{path} is no card of hocket's: {error!r}.") from error
        told = document.get("overall", {}).get("rate")
        if told is not None and told != report.overall.rate:
            raise RunFolderError(
                f"{path} says a rate of {told}, but its trials give {report.overall.rate}."
            )
        is_independent = document.get("independent_starts") is True
        return cls(report=report, trials=tuple(trials), independent_starts=is_independent)

    @property
    def episodes(self) -> dict[Trial, Episode]:
        return {episode.trial: episode for episode in self.report.episodes}


def is_card(path: Path) -> bool:
    """True if a path is that of a card, and not of a run folder."""
    return path.is_file() and path.suffix == ".json"


def _config(plain: Any) -> dict[str, Any]:
    """A configuration as others read it: envs and policy by name, settings as mappings."""
    config = dict(plain)
    names = [*config["env"], config["policy"]]
    if isinstance(config["env"], str) or not all(isinstance(name, str) for name in names):
        raise ValueError("env is a list of names, policy a name")
    if not all(isinstance(config.get(k, {}), dict) for k in ("env_config", "policy_config")):
        raise ValueError("settings are mappings")
    return config


def _packed(trials: Sequence[Trial], episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """One entry for each task: a letter, the steps and the return of each of its trials."""
    ended = {episode.trial: episode for episode in episodes}
    groups: dict[tuple[str, str, int], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.suite, trial.task, trial.repeat), []).append(trial)
    packed = []
    for (suite, task, repeat), some in groups.items():
        found = [ended.get(trial) for trial in some]
        packed.append(
            {
                "suite": suite,
                "task": task,
                **({"repeat": repeat} if repeat else {}),
                "seeds": [trial.seed for trial in some],
                "outcomes": "".join(_PENDING if e is None else LETTERS[e.outcome] for e in found),
                "steps": [None if e is None else e.steps for e in found],
                "returns": [
                    None if e is None or not math.isfinite(e.total_reward) else e.total_reward
                    for e in found
                ],
            }
        )
    return packed


def _unpacked(packed: Sequence[Mapping[str, Any]]) -> tuple[list[Trial], list[Episode]]:
    trials: list[Trial] = []
    episodes: list[Episode] = []
    for group in packed:
        suite, task, repeat = str(group["suite"]), str(group["task"]), int(group.get("repeat", 0))
        rows = zip(group["seeds"], group["outcomes"], group["steps"], group["returns"], strict=True)
        for seed, letter, steps, gave in rows:
            trial = Trial(suite, task, int(seed), repeat)
            trials.append(trial)
            if letter != _PENDING:
                reward = math.nan if gave is None else float(gave)
                episodes.append(Episode(trial, 0, _OUTCOMES[letter], int(steps), reward))
    return trials, episodes


def same_bits(a: Episode, b: Episode) -> bool:
    """True if two episodes of a trial ended alike to the bit, as far as a card can tell."""
    alike = (a.outcome, a.steps) == (b.outcome, b.steps)
    both_nan = math.isnan(a.total_reward) and math.isnan(b.total_reward)
    return alike and (both_nan or a.total_reward == b.total_reward)


def with_trials(card: Card, trials: Sequence[Trial]) -> Card:
    """The card with these of its trials alone."""
    chosen = set(trials)
    report = Report.build(
        config=card.report.config,
        claim=card.report.claim,
        trials=list(trials),
        episodes=[e for e in card.report.episodes if e.trial in chosen],
        throughput=Throughput(),
        provenance=card.report.provenance,
        version=card.report.version,
    )
    return dataclasses.replace(card, report=report, trials=tuple(trials))
