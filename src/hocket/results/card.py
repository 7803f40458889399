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
from hocket.results.report import Report
from hocket.results.throughput import Throughput
from hocket.system.json_file import read_json, write_json

FILE_NAME = "card.json"
LETTERS: Mapping[Outcome, str] = {
    Outcome.SUCCESS: "S",
    Outcome.FAILURE: "F",
    Outcome.FINISHED: "D",
    Outcome.ERROR: "E",
}
"""How trials end, one letter each; `D`, done, where there is nothing to succeed at."""
_MEANINGS = {letter: outcome.value for outcome, letter in LETTERS.items()}
_REPORTED = (
    *("hocket", "config", "exactness", "checks", "unseeded", "changed", "complete", "planned"),
    *("overall", "suites", "tasks"),
)
"""What a card has as the report has it."""
RERUN = (
    *("replan", "ensemble", "delay", "method", "first_chunk"),
    *("max_steps", "exact", "perturb"),
)
"""Settings of a run that its numbers are about, and that a check of it therefore takes from it.
None of them names a file or any code, but for the prompts of a disturbance."""
GROUPS = ("env", "policy", "rtc")
"""Groups of settings that its numbers are about, too."""
_PENDING = "-"
_OUTCOMES = {letter: outcome for outcome, letter in LETTERS.items()}
_COUNTED = (
    *("suite", "task", "n", "successes", "finished", "rate", "errors", "rate_errors_as_failures"),
    *("mean_steps", "mean_return"),
)
"""What a card says of scores and its trials must give again. Intervals are made anew: another
version may have another method for them."""
_MOST_BYTES = 100_000_000
_MOST_STARTS = 1_000_000
_DEEPEST = 30
"""Levels of nesting."""
_LAST = 1 << 63
"""Seeds and counts are below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a card says."""

    report: Report
    """Scored anew from the trials: what the card says of rates is not believed, but counted."""
    trials: tuple[Trial, ...]
    """All that were planned."""
    path: str = FILE_NAME
    """Where it was read, as messages name it."""

    @classmethod
    def of(cls, run: RecordedRun) -> Card:
        return cls(report=run.report, trials=tuple(run.trials))

    def to_json(self) -> dict[str, Any]:
        report = self.report.to_json(listed=False)
        return {
            "format": formats.CARD.number,
            **{key: report[key] for key in _REPORTED if key in report},
            "provenance": report.get("provenance", {}),
            "letters": _MEANINGS,
            "trials": _packed(self.trials, self.report.episodes),
        }

    def save(self, path: Path) -> None:
        """Write the card, whole or not at all: one key, or one task, on a line."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Card:
        """Read a card; one that says anything impossible is refused."""
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            raise RunFolderError(f"{path} is larger than a card may be, {_MOST_BYTES:,} bytes.")
        document = read_json(path)
        if not isinstance(document, dict) or "hocket" not in document:
            raise RunFolderError(f"{path} is no card of hocket's.")
        formats.CARD.check(path, document.get("format"))
        try:
            _check_depth(document)
            if document.get("letters", _MEANINGS) != _MEANINGS:
                raise ValueError("its letters mean something else than hocket's")
            trials, episodes = _unpacked(document["trials"])
            report = Report.build(
                config=_config(document["config"]),
                claim=Claim.from_json(document),
                trials=trials,
                episodes=episodes,
                throughput=Throughput(),
                independent_starts=document.get("independent_starts") is True,
                provenance=_mapping(document.get("provenance", {})),
                version=_name(document["hocket"]),
            )
            for count in dataclasses.astuple(report.claim.checks):
                _whole(count)
            counted = report.to_json(listed=False)
            for key in ("planned", "complete", "overall", "suites", "tasks"):
                if key in document and not _is_alike(document[key], counted[key]):
                    raise RunFolderError(
                        f"{path} says something else of its {key} than its trials give: "
                        f"a rate of {report.overall.rate} over {report.overall.success.n:,} of "
                        f"{len(trials):,} trials."
                    )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RunFolderError(f"{path} is no card of hocket's: {error!r:.300}.") from error
        return cls(report=report, trials=tuple(trials), path=str(path))

    @property
    def episodes(self) -> dict[Trial, Episode]:
        return {episode.trial: episode for episode in self.report.episodes}


def is_card(path: Path) -> bool:
    """True if a path is that of a card, and not of a run folder."""
    return path.is_file() and path.suffix == ".json"


def _config(plain: Any) -> dict[str, Any]:
    """A configuration as others read it: envs and policy by name, settings as mappings, a plan."""
    config = _mapping(plain)
    if not isinstance(config["env"], list) or not config["env"]:
        raise ValueError("env is a list of names")
    for name in (*config["env"], config["policy"]):
        _name(name)
    for key in ("env_config", "policy_config", "rtc_config"):
        _mapping(config.get(key, {}))
    _whole(config.get("seed", 0))
    _whole(config.get("episodes", 1), most=_MOST_STARTS)
    return config


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.60} is no mapping")
    return dict(value)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r:.60} is no name")
    return value


def _whole(value: Any, *, most: int = _LAST - 1) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r:.60} is no whole number from 0 to {most}")
    return value


def _check_depth(document: Any) -> None:
    """Refuse what is nested more deeply than any card: whoever walks it would run out of stack."""
    level = [document]
    for _ in range(_DEEPEST):
        mappings = [each.values() for each in level if isinstance(each, dict)]
        lists = [each for each in level if isinstance(each, list)]
        level = [inner for some in (*mappings, *lists) for inner in some]
    if level:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")


def _is_alike(told: Any, counted: Any) -> bool:
    """True if what a card says of scores is what its trials give, but for rounding."""
    if isinstance(counted, dict):
        return isinstance(told, dict) and all(
            _is_alike(told[key], counted.get(key)) for key in _COUNTED if key in told
        )
    if isinstance(counted, list):
        is_as_long = isinstance(told, list) and len(told) == len(counted)
        return is_as_long and all(map(_is_alike, told, counted))
    if isinstance(counted, float):
        is_number = type(told) in (int, float)
        return is_number and math.isclose(told, counted, rel_tol=1e-9, abs_tol=1e-12)
    return type(told) is type(counted) and bool(told == counted)


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
        suite, task, repeat = _name(group["suite"]), _name(group["task"]), group.get("repeat", 0)
        rows = zip(group["seeds"], group["outcomes"], group["steps"], group["returns"], strict=True)
        for seed, letter, steps, gave in rows:
            trial = Trial(suite, task, _whole(seed), _whole(repeat))
            trials.append(trial)
            if letter != _PENDING:
                reward = math.nan if gave is None else gave
                if type(reward) not in (int, float) or math.isinf(reward):
                    raise ValueError(f"{reward!r:.60} is no return")
                episodes.append(Episode(trial, 0, _OUTCOMES[letter], _whole(steps), float(reward)))
    if len(set(trials)) < len(trials):
        raise ValueError("a trial stands there twice")
    return trials, episodes


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was set to beyond its names and its plan, such as `max_steps` and `env.size`; what
    was left at its default is not among it."""
    found = {key: config.get(key) for key in RERUN}
    found = {key: value for key, value in found.items() if value not in (None, "")}
    if not found.get("exact"):
        found.pop("exact", None)
    for group in GROUPS:
        given = config.get(f"{group}_config") or {}
        found |= {f"{group}.{key}": value for key, value in given.items()}
    return found


def same_bits(a: Episode, b: Episode) -> bool:
    """True if two episodes of a trial ended alike to the bit, as far as a card can tell."""
    alike = (a.outcome, a.steps) == (b.outcome, b.steps)
    both_nan = math.isnan(a.total_reward) and math.isnan(b.total_reward)
    return alike and (both_nan or a.total_reward == b.total_reward)


def part_of(report: Report, trials: Sequence[Trial], *, unjudged_failed: bool = False) -> Report:
    """The report of these trials alone; where `unjudged_failed`, as if each that is missing or an
    error had failed."""
    found = {episode.trial: episode for episode in report.episodes}
    if unjudged_failed:
        for trial in trials:
            if trial not in found or found[trial].outcome is Outcome.ERROR:
                found[trial] = Episode(trial, 0, Outcome.FAILURE, 0, 0.0)
    return Report.build(
        config=report.config,
        claim=report.claim,
        trials=list(trials),
        episodes=[found[trial] for trial in trials if trial in found],
        throughput=Throughput(),
        independent_starts=report.independent_starts,
        provenance=report.provenance,
        version=report.version,
    )
