"""What a run means: success per task, per suite and overall, each with its n and interval."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket import __version__
from hocket.core.data import Episode, Exactness, Outcome, Trial
from hocket.errors import RunFolderError
from hocket.records import formats
from hocket.results.comparing.decision import Decision
from hocket.results.exactness import Claim
from hocket.results.scores import Score, score_table
from hocket.results.stats import UNEVEN
from hocket.results.tables import ResultTable
from hocket.system.durable import write_atomic

if TYPE_CHECKING:
    from rich.table import Table

FILE_NAME = "report.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How fast a run went, and what kept it from going faster."""

    env_steps: int = 0
    chunks: int = 0
    """How many chunks lanes executed."""
    batches: int = 0
    policy_busy: float | None = None
    """The share of the time in which the policy inferred, 0 to 1."""
    cores_busy: float | None = None
    """The share of the cores' time that workers used, 0 to 1."""
    wall_s: float = 0.0
    lanes: int = 0
    cores: int = 0
    failed_attempts: int = 0
    unmade_attempts: int = 0
    """Attempts that were given a number and never made: another machine took the trial over."""

    @property
    def env_steps_per_s(self) -> float | None:
        """Control steps that all lanes together executed, per second."""
        return self.env_steps / self.wall_s if self.wall_s > 0 else None

    @property
    def mean_batch(self) -> float | None:
        """How many chunks one inference gave on average."""
        return self.chunks / self.batches if self.batches else None

    def to_json(self) -> dict[str, Any]:
        """The fields and the numbers derived from them."""
        derived = {"env_steps_per_s": self.env_steps_per_s, "mean_batch": self.mean_batch}
        own = dataclasses.asdict(self)
        if not self.unmade_attempts:
            # Runs on one machine have none, and their reports say what they always said.
            del own["unmade_attempts"]
        return {**derived, **own}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a run. Prints as a table; `save` and `load` keep it as `report.json`."""

    version: str
    config: Mapping[str, Any]
    claim: Claim
    """What `the same trial` means here, with the checks behind it."""
    planned: int
    overall: Score
    suites: tuple[Score, ...]
    tasks: tuple[Score, ...]
    episodes: tuple[Episode, ...]
    """Those that have ended, in planned order."""
    throughput: Throughput
    decision: Decision | None = None
    """What the comparison that this run was to decide came to; None where it was to decide none."""
    kept_errors: tuple[Mapping[str, Any], ...] = ()
    """The attempts that were lost and of which the run folder keeps what was recorded: trial,
    attempt, error and folder. They are no part of any number here."""
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What else the numbers depend on: code, versions, machine, files, what envs tell."""

    @classmethod
    def build(
        cls,
        *,
        config: Mapping[str, Any],
        claim: Claim,
        trials: Sequence[Trial],
        episodes: Sequence[Episode],
        throughput: Throughput,
        decision: Decision | None = None,
        kept_errors: Sequence[Mapping[str, Any]] = (),
        provenance: Mapping[str, Any] | None = None,
        version: str = __version__,
    ) -> Report:
        """Score the episodes of the planned `trials`; trials without one yet are not counted."""
        found = {episode.trial: episode for episode in episodes}
        if len(found) != len(episodes):
            raise ValueError("A trial has two episodes; each is counted once.")
        ordered = tuple(found.pop(trial) for trial in dict.fromkeys(trials) if trial in found)
        if found:
            raise ValueError(f"{next(iter(found)).id} was not planned.")
        return cls._scored(
            tasks=list(dict.fromkeys((trial.suite, trial.task) for trial in trials)),
            version=version,
            config=_plain(config),
            claim=claim,
            planned=len(trials),
            episodes=ordered,
            throughput=throughput,
            decision=decision,
            kept_errors=tuple(kept_errors),
            provenance=_plain(provenance or {}),
        )

    @classmethod
    def _scored(
        cls,
        *,
        tasks: Sequence[tuple[str, str]],
        episodes: tuple[Episode, ...],
        **fields: Any,
    ) -> Report:
        by_task: dict[tuple[str, str], list[Episode]] = {key: [] for key in tasks}
        by_suite: dict[str, list[Episode]] = {suite: [] for suite, _ in tasks}
        for episode in episodes:
            by_task[episode.trial.suite, episode.trial.task].append(episode)
            by_suite[episode.trial.suite].append(episode)
        return cls(
            overall=Score.of(episodes),
            suites=tuple(Score.of(some, suite=suite) for suite, some in by_suite.items()),
            tasks=tuple(
                Score.of(some, suite=suite, task=task) for (suite, task), some in by_task.items()
            ),
            episodes=episodes,
            **fields,
        )

    @property
    def exactness(self) -> Exactness:
        return self.claim.level

    @property
    def complete(self) -> bool:
        """True if every planned trial has its episode."""
        return len(self.episodes) == self.planned

    def to_json(self) -> dict[str, Any]:
        """The contents of `report.json`, in which there is neither NaN nor infinity."""
        document: dict[str, Any] = {
            "format": formats.REPORT.number,
            "hocket": self.version,
            "config": self.config,
            **self.claim.to_json(),
            "complete": self.complete,
            "planned": self.planned,
            "overall": self.overall.to_json(),
            "suites": [score.to_json() for score in self.suites],
            "tasks": [score.to_json() for score in self.tasks],
            "episodes": [_episode_to_json(episode) for episode in self.episodes],
            "throughput": self.throughput.to_json(),
        }
        if self.provenance:
            document["provenance"] = self.provenance
        if self.kept_errors:
            document["kept_errors"] = self.kept_errors
        if self.decision is not None:
            document["decision"] = self.decision.to_json()
        return {key: _plain(value) for key, value in document.items()}

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `report.json` into an existing folder, whole or not at all."""
        target = Path(folder) / FILE_NAME
        write_json(target, self.to_json())
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read `report.json`, or that of a run folder. What the file leaves out of an episode (how
        it ended, its chunks, seconds and files) is in the run's ledger, not here."""
        file = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
        document = read_json(file)
        formats.REPORT.check(file, document.get("format") if isinstance(document, dict) else None)
        try:
            found, fields = document["throughput"], dataclasses.fields(Throughput)
            return cls._scored(
                tasks=[(score["suite"], score["task"]) for score in document["tasks"]],
                version=document["hocket"],
                config=document["config"],
                claim=Claim.from_json(document),
                planned=document["planned"],
                episodes=tuple(_episode_from_json(episode) for episode in document["episodes"]),
                throughput=Throughput(
                    **{field.name: found[field.name] for field in fields if field.name in found}
                ),
                decision=Decision.from_json(document["decision"])
                if "decision" in document
                else None,
                kept_errors=tuple(document.get("kept_errors", ())),
                provenance=document.get("provenance", {}),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"{file} is no report of hocket's: {error!r}.") from error

    def results(self) -> ResultTable:
        """The numbers as a table: each suite with its tasks, and all together."""
        return score_table(self.overall, self.suites, self.tasks, footer=self.summary)

    @property
    def summary(self) -> str:
        """One sentence on what ran, how fast, and what `the same trial` means here."""
        count = f"{self.planned:,} trials" if self.planned != 1 else "1 trial"
        if not self.complete:
            count = f"INCOMPLETE: {len(self.episodes):,} of {count}"
        speed = self.throughput.env_steps_per_s
        pace = f" in {self.throughput.wall_s:,.1f} s" if self.throughput.wall_s else ""
        pace += f", {speed:,.0f} env steps/s" if speed is not None else ""
        said = [f"{count}{pace}.", *self._remarks(), self.claim.sentence, *self.cautions]
        return " ".join(said)

    def _remarks(self) -> Iterator[str]:
        """Yield sentences on episodes that are not in the overall n, and on attempts that were lost
        before the one that counts. A trial that errs has spent them all, and is in the table."""
        if self.overall.is_mixed:
            count = self.overall.finished
            had = f"{count:,} episodes had" if count > 1 else "1 episode had"
            yield f"{had} nothing to succeed at: no part of overall n."
        made = sum(episode.attempt for episode in self.episodes)
        if (lost := made - self.throughput.unmade_attempts) > 0:
            yield f"{lost:,} {'attempts were' if lost > 1 else 'attempt was'} lost and run again."
        if count := len(self.kept_errors):
            what = f"{count:,} attempts that were lost" if count > 1 else "1 attempt that was lost"
            yield f"What {what} recorded is kept, and shown under errors in report.html."

    @property
    def cautions(self) -> list[str]:
        """What must be said lest the numbers be believed too much."""
        interval = self.overall.success.interval
        is_uneven = interval is not None and interval.method == UNEVEN
        return [
            *([] if self.complete else [UNFAIR]),
            *([ONCE] if is_uneven else []),
            *self.decision_told,
        ]

    @property
    def decision_told(self) -> list[str]:
        """What the comparison that this run was to decide came to, and what that does to its rates;
        empty where it was to decide none."""
        decision = self.decision
        if decision is None:
            return []
        other = Path(decision.against).name
        found = [decision.told("this run", other), decision.errors_told("this run", other)]
        if decision.look.decision != "undecided":
            found.append("The rates of a run that stopped there are biased towards that.")
        return [sentence for sentence in found if sentence]

    def table(self) -> Table:
        return self.results().rich()

    def __str__(self) -> str:
        return self.results().text(shutil.get_terminal_size((80, 24)).columns)

    def _repr_html_(self) -> str:
        return self.results().html()


UNFAIR = "Trials that end early are no fair sample of all: finish the run before you quote a rate."
"""Why the numbers of an unfinished run may not be quoted."""
ONCE = "Tasks differ in n; each counts once in the rates over several."


def read_json(file: Path) -> Any:
    """What a report or a card holds; RunFolderError where it cannot be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"Cannot read {file}: {error.strerror or error}.") from error
    except ValueError as error:
        raise RunFolderError(f"{file} is no JSON: {error}.") from error


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """Write a whole file or nothing, with one key, or one entry of a list, on a line: people can
    read it, and it is written fast (indenting would cost seconds for 100,000 episodes)."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    parts = []
    for key, value in document.items():
        body = text(value)
        if isinstance(value, list) and value:
            body = "[\n  " + ",\n  ".join(text(entry) for entry in value) + "\n ]"
        parts.append(f" {text(key)}: {body}")
    write_atomic(file, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def _plain(value: Any) -> Any:
    """The value as strict JSON has it: text keys, lists, None for what is no finite number."""
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return _plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int)) else str(value)


def _episode_to_json(episode: Episode) -> dict[str, Any]:
    return {
        "trial": episode.trial.id,
        **episode.trial._asdict(),
        "outcome": episode.outcome.value,
        "steps": episode.steps,
        "return": episode.total_reward,
        "attempts": episode.attempt + 1,
        "error": episode.error,
    }


def _episode_from_json(found: Mapping[str, Any]) -> Episode:
    return Episode(
        trial=Trial._make(found[name] for name in Trial._fields),
        attempt=found["attempts"] - 1,
        outcome=Outcome(found["outcome"]),
        steps=found["steps"],
        total_reward=math.nan if found["return"] is None else found["return"],
        error=found["error"],
    )
