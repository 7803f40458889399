"""What a run means: success per task, per suite and overall, each with its n and interval."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket import __version__
from hocket.core.data import Episode, Exactness, Outcome, Trial
from hocket.errors import MissingExtraError, RunFolderError
from hocket.records import formats
from hocket.records.ledger.episodes import Episodes, Trials
from hocket.results import stats
from hocket.results.comparing.sequential import Decision
from hocket.results.exactness import Claim
from hocket.results.run_protocol import protocol_told
from hocket.results.scores import BY_SEED, Score, score_table
from hocket.results.tables import ResultTable
from hocket.results.throughput import Throughput
from hocket.system.json_file import plain, read_json, write_json
from hocket.system.text import counted

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from rich.table import Table

FILE_NAME = "report.json"
TABLE = "episodes.parquet"
"""Beside it: a row for each episode, where they are many."""
MOST_LISTED = 1000
"""Episodes that report.json lists. For 100,000 the list has 20 MB, of which most readers want
none."""


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
    episodes: Episodes
    """Those that have ended, in planned order."""
    throughput: Throughput
    decision: Decision | None = None
    """What the comparison that this run was to decide came to; None where it was to decide none."""
    independent_starts: bool = False
    """True if trials of one seed start independently of each other, as the suites declare."""
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
        independent_starts: bool = False,
        kept_errors: Sequence[Mapping[str, Any]] = (),
        provenance: Mapping[str, Any] | None = None,
        version: str = __version__,
    ) -> Report:
        """Score the episodes of the planned `trials`; trials without one yet are not counted."""
        if not isinstance(episodes, Episodes):  # those of a ledger are one a trial, and in order
            found = {episode.trial: episode for episode in episodes}
            if len(found) != len(episodes):
                raise ValueError("A trial has two episodes; each is counted once.")
            ordered = [found.pop(trial) for trial in dict.fromkeys(trials) if trial in found]
            if found:
                raise ValueError(f"{next(iter(found)).id} was not planned.")
            episodes = Episodes.of(ordered)
        planned = trials if isinstance(trials, Trials) else Trials.of(trials)
        return cls._scored(
            tasks=planned.kinds,
            version=version,
            config=plain(config),
            claim=claim,
            planned=len(trials),
            episodes=episodes,
            throughput=throughput,
            decision=decision,
            independent_starts=independent_starts,
            kept_errors=tuple(kept_errors),
            provenance=plain(provenance or {}),
        )

    @classmethod
    def _scored(
        cls,
        *,
        tasks: Sequence[tuple[str, str]],
        episodes: Episodes,
        independent_starts: bool,
        **fields: Any,
    ) -> Report:
        if unknown := set(episodes.trials.kinds) - set(tasks):
            raise KeyError(unknown.pop())
        names = dict.fromkeys(suite for suite, _ in tasks)
        # Where the rows of each task are, and of each suite.
        kinds = {kind: number for number, kind in enumerate(episodes.trials.kinds)}
        kind = episodes.trials.kind
        suite_of = np.array([list(names).index(suite) for suite, _ in kinds], np.int64)
        score = functools.partial(Score.of, episodes, independent=independent_starts)
        overall, none = score(), np.zeros(0, np.int64)  # first: of very many it takes most memory
        by_task, by_suite = stats.rows_by(kind), stats.rows_by(suite_of[kind])
        return cls(
            overall=overall,
            suites=tuple(
                score(by_suite.get(number, none), suite=suite) for number, suite in enumerate(names)
            ),
            tasks=tuple(
                score(by_task.get(kinds.get((suite, task), -1), none), suite=suite, task=task)
                for suite, task in tasks
            ),
            episodes=episodes,
            independent_starts=independent_starts,
            **fields,
        )

    @property
    def exactness(self) -> Exactness:
        return self.claim.level

    @property
    def complete(self) -> bool:
        """True if every planned trial has its episode."""
        return len(self.episodes) == self.planned

    @property
    def remarks(self) -> Mapping[str, int]:
        """What is to be told of episodes, in sentences, with the number of these."""
        return self.episodes.remarks

    @property
    def remarks_told(self) -> list[str]:
        """The same in sentences, and first how many episodes diverged."""
        count = int(self.episodes.columns["diverged"].sum())
        what = "diverged: actions or states were NaN or infinite, which counts as a failure."
        found = [f"{counted(count, 'episode')} {what}"] if count else []
        return [*found, *(f"In {counted(n, 'episode')}: {t}" for t, n in self.remarks.items())]

    def to_json(self, *, listed: bool = True) -> dict[str, Any]:
        """The contents of `report.json`, in which there is neither NaN nor infinity. Above
        MOST_LISTED the file of the episodes stands for them, unless they are to be `listed`."""
        is_listed = len(self.episodes) <= MOST_LISTED or listed or self.config.get("json_episodes")
        document: dict[str, Any] = {
            "format": formats.REPORT.number,
            "hocket": self.version,
            "config": self.config,
            **self.claim.to_json(),
            "independent_starts": self.independent_starts,
            "complete": self.complete,
            "planned": self.planned,
            "overall": self.overall.to_json(),
            "suites": [score.to_json() for score in self.suites],
            "tasks": [score.to_json() for score in self.tasks],
            "episodes": list(map(_episode_to_json, self.episodes)) if is_listed else TABLE,
            "throughput": self.throughput.to_json(),
        }
        if self.provenance:
            document["provenance"] = self.provenance
        if self.remarks:
            document["remarks"] = [{"text": t, "episodes": n} for t, n in self.remarks.items()]
        if self.kept_errors:
            document["kept_errors"] = self.kept_errors
        if self.decision is not None:
            document["decision"] = self.decision.to_json()
        return {key: plain(value) for key, value in document.items()}

    def save(self, folder: str | os.PathLike[str], *, listed: bool = False) -> Path:
        """Write `report.json` into an existing folder, whole or not at all, and the file of the
        episodes where they are many and not to be `listed`."""
        target = Path(folder) / FILE_NAME
        document, table = self.to_json(listed=listed), target.with_name(TABLE)
        if document["episodes"] == TABLE:
            from hocket.records.episode_file import write_episodes

            document["episodes_digest"] = write_episodes(table, self.episodes)
        write_json(target, document)
        if "episodes_digest" not in document:
            table.unlink(missing_ok=True)
        return target

    def says(self, document: Mapping[str, Any], folder: Path) -> bool:
        """True if the document of a folder's `report.json`, with what it names, says the same."""
        from hocket.records.parquet import digest_of

        theirs, table = dict(document), folder / TABLE
        digest = theirs.pop("episodes_digest", None)
        is_kept = digest is None or (table.exists() and digest_of(table) == digest)
        return is_kept and self.to_json(listed=digest is None) == theirs

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read `report.json`, or that of a run folder. What the file leaves out of an episode (how
        it ended, its chunks, seconds and files) is in the run's ledger, not here."""
        file = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
        document = read_report(file)
        try:
            if (listed := document["episodes"]) == TABLE:
                from hocket.records.episode_file import read_rows

                listed = read_rows(file.with_name(TABLE), document.get("episodes_digest"))
            episodes = Episodes.of(map(_episode_from_json, listed))
            return cls._scored(
                tasks=[(score["suite"], score["task"]) for score in document["tasks"]],
                version=document["hocket"],
                config=document["config"],
                claim=Claim.from_json(document),
                planned=document["planned"],
                episodes=episodes,
                throughput=Throughput.from_json(document),
                decision=Decision.from_json(document["decision"])
                if "decision" in document
                else None,
                independent_starts=document.get("independent_starts") is True,
                kept_errors=tuple(document.get("kept_errors", ())),
                provenance=document.get("provenance", {}),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"{file} is no report of hocket's: {error!r}.") from error

    def to_arrow(self) -> pa.Table:
        """A row for each episode, as `episodes.parquet` has them: what its env told, and remarks,
        as JSON."""
        from hocket.records.episode_file import table_of

        return table_of(self.episodes)

    def to_pandas(self) -> pd.DataFrame:
        """The same as a frame of pandas, which has to be installed."""
        if importlib.util.find_spec("pandas") is None:
            raise MissingExtraError("A frame takes the package 'pandas'. Run: pip install pandas")
        return self.to_arrow().to_pandas()

    def results(self) -> ResultTable:
        """The numbers as a table: each suite with its tasks, and all together."""
        return score_table(self.overall, self.suites, self.tasks, footer=self.summary)

    @property
    def summary(self) -> str:
        """One sentence on what ran, how fast, and what `the same trial` means here."""
        count = counted(self.planned, "trial")
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
        yield from protocol_told(self.provenance)
        if self.overall.is_mixed:
            had = counted(self.overall.finished, "episode")
            yield f"{had} had nothing to succeed at: no part of overall n."
        made = int(self.episodes.columns["attempt"].sum())
        if (lost := made - self.throughput.unmade_attempts) > 0:
            yield f"{lost:,} {'attempts were' if lost > 1 else 'attempt was'} lost and run again."
        for leg in self.provenance.get("legs", ())[1:]:
            yield f"{leg['episodes']:,} episodes are of other legs: {'; '.join(leg['differs'])}."
        if count := len(self.kept_errors):
            what = f"{count:,} attempts that were lost" if count > 1 else "1 attempt that was lost"
            yield f"What {what} recorded is kept, and shown under errors in report.html."
        yield from self.remarks_told

    @property
    def cautions(self) -> list[str]:
        """What must be said lest the numbers be believed too much."""
        interval = self.overall.success.interval
        is_uneven = len({task.success.n for task in self.tasks if task.success.n}) > 1
        return [
            *([] if self.complete else [UNFAIR]),
            *([ONCE] if is_uneven else []),
            *([SHARED] if interval is not None and interval.method == BY_SEED else []),
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
SHARED = "Trials of one seed may start alike; the intervals over tasks allow for it."
ONCE = "Tasks differ in n; each counts once in the rates over several."


def read_report(file: Path) -> Any:
    """What a report.json of ours holds."""
    document = read_json(file)
    formats.REPORT.check(file, document.get("format") if isinstance(document, dict) else None)
    return document


def _episode_to_json(episode: Episode) -> dict[str, Any]:
    return {
        "trial": episode.trial.id,
        **episode.trial._asdict(),
        "outcome": episode.outcome.value,
        "steps": episode.steps,
        "return": episode.total_reward,
        "attempts": episode.attempt + 1,
        "error": episode.error,
        **({} if episode.progress is None else {"progress": episode.progress}),
        **({"told": episode.told} if episode.told else {}),
        **({"diverged": True} if episode.diverged else {}),
        **({"remarks": episode.remarks} if episode.remarks else {}),
    }


def _episode_from_json(found: Mapping[str, Any]) -> Episode:
    return Episode(
        trial=Trial._make(found[name] for name in Trial._fields),
        attempt=found["attempts"] - 1,
        outcome=Outcome(found["outcome"]),
        steps=found["steps"],
        total_reward=math.nan if found["return"] is None else found["return"],
        error=found["error"],
        progress=found.get("progress"),
        told={k: math.nan if v is None else v for k, v in found.get("told", {}).items()},
        remarks=tuple(found.get("remarks", ())),
        diverged=found.get("diverged", False),
    )
