"""A run as its folder tells it: what pages and exports are made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.core.data import Episode
from hocket.errors import DamagedSegmentError, RunFolderError
from hocket.records.evidence import Evidence, kept_evidence
from hocket.records.folder import RunFolder
from hocket.records.labels import load_labels
from hocket.records.ledger.episodes import Episodes, Trials
from hocket.records.ledger.schema import FILMS
from hocket.records.ledger.view import Failure, KeptLeg, LedgerView
from hocket.records.program import changes
from hocket.records.run_file import load_about
from hocket.records.step_rows import KeptStates
from hocket.records.video.selection import VideoSelection
from hocket.results.comparing.sequential import KEY, Decision
from hocket.results.exactness import kept_claim
from hocket.results.report import FILE_NAME, Report
from hocket.results.throughput import Throughput
from hocket.results.timing import RunTiming, load_timing
from hocket.system.durable import TEMPORARY
from hocket.workers.sinks.video import is_rendered_later


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """Everything that a run's folder says."""

    folder: Path
    report: Report
    about: Mapping[str, Any]
    """Versions, machine and command; empty where run.yaml does not say."""
    trials: Trials
    failures: Sequence[Failure] = ()
    evidence: Sequence[Evidence] = ()
    """What is kept of the attempts that were lost."""
    filmed_tasks: frozenset[tuple[str, str]] = frozenset()
    """Suite and task of the envs that have cameras and can be shown again from their states."""
    films: Mapping[str, int] = field(default_factory=dict)
    """How many episodes were `filmed` while they ran, of how many that `ended`, and how many films
    `lacked` room; empty where none was."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What people said of episodes, by trial id."""
    timing: RunTiming | None = None
    damage: str | None = None
    """Why there is no timing, where its rows are there and cannot be trusted."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def title(self) -> str:
        """The policy and the suites, such as `reference on metaworld:mt10`."""
        return f"{self.report.config.get('policy', 'policy')} on {', '.join(self.suites)}"

    @property
    def suites(self) -> list[str]:
        return list(dict.fromkeys(suite for suite, _ in self.trials.kinds))

    def videos(self, episode: Episode) -> list[str]:
        """An episode's videos, relative to the folder: those sealed with it, and those rendered
        since."""
        attempt = RunFolder.at(self.folder).attempt(episode.trial, episode.attempt)
        later = [path.relative_to(self.folder).as_posix() for path in attempt.glob("[!.]*.mp4")]
        sealed = [file for file in episode.files if file.endswith(".mp4")]
        return list(dict.fromkeys([*sealed, *sorted(later)]))

    def with_folders(self, episodes: Iterable[Episode]) -> Iterator[Episode]:
        """Those of the episodes that have a folder: the only ones that can have videos."""
        home = RunFolder.at(self.folder).episodes
        slugs = {path.name for path in home.iterdir()} if home.is_dir() else set[str]()
        if slugs:  # to look at each episode of very many takes seconds
            yield from (episode for episode in episodes if episode.trial.slug in slugs)

    @property
    def missing_videos(self) -> list[Episode]:
        """The episodes that the run was to film, and that can still be: it was interrupted, or the
        files were deleted."""
        wanted = VideoSelection.parse(str(self.report.config.get("video", "none")))
        kept = KeptStates(self.folder)
        return [
            episode
            for episode in wanted.episodes(self.trials, self.report.episodes)
            if (episode.trial.suite, episode.trial.task) in self.filmed_tasks
            and not self._is_filmed(episode)
            and kept.can_show(episode)
        ]

    def _is_filmed(self, episode: Episode) -> bool:
        attempt = RunFolder.at(self.folder).attempt(episode.trial, episode.attempt)
        # A draft is what an interruption left, perhaps between two cameras.
        return bool(self.videos(episode)) and not any(attempt.glob(f".*{TEMPORARY}"))


def open_recorded(
    folder: Path, report: Report | None = None, *, last: Throughput | None = None
) -> RecordedRun:
    """Read a run folder, with its ledger or, where it has none, from its report alone. `last` is
    the throughput of its last leg, where it is known."""
    root = RunFolder.at(folder)
    about = load_about(root.root)
    if not root.ledger.exists():
        if not (root.root / FILE_NAME).exists():
            raise RunFolderError(
                f"There is no run in {str(root.root)!r}: it has neither a ledger nor a {FILE_NAME}."
            )
        report = Report.load(root.root)
        trials = report.episodes.trials
        return RecordedRun(folder=root.root, report=report, about=about, trials=trials)
    timing, damage = None, None
    try:
        timing = load_timing(root)
    except DamagedSegmentError as exc:
        # What became of the trials is in the ledger, and as true as before.
        damage = str(exc)
    with LedgerView.open(root) as ledger:
        failures, specs, evidence = ledger.failures(), ledger.specs(), kept_evidence(ledger)
        films = ledger.meta().get(FILMS, {})
        if report is not None:
            trials = ledger.trials()
        else:
            throughput = last or Throughput()
            if timing is not None:
                throughput = _of_timing(timing, throughput)
            trials, episodes = ledger.read()
            report = build_report(ledger, about, throughput, (trials, episodes))
    return RecordedRun(
        folder=root.root,
        report=report,
        about=about,
        trials=trials,
        failures=failures,
        evidence=evidence,
        filmed_tasks=frozenset(
            task
            for task, spec in specs.items()
            if spec.cameras and is_rendered_later(spec.abilities)
        ),
        films=films,
        labels=load_labels(root.root),
        timing=timing,
        damage=damage,
    )


def of_all_legs(folder: Path, last: Throughput) -> Throughput:
    """The throughput of a whole run, by its table of chunks. What that does not tell is of the last
    leg, or unknown."""
    try:
        timing = load_timing(RunFolder.at(folder))
    except DamagedSegmentError:
        return last
    return last if timing is None else _of_timing(timing, last)


def _of_timing(timing: RunTiming, last: Throughput) -> Throughput:
    return dataclasses.replace(
        last,
        env_steps=timing.steps,
        chunks=timing.chunks,
        batches=timing.batches,
        worked_s=timing.lane_s["stepping"] + timing.lane_s["observing"],
        wall_s=timing.wall_s,
        lanes=last.lanes or timing.lanes,
    )


def build_report(
    ledger: LedgerView,
    about: Mapping[str, Any],
    throughput: Throughput,
    read: tuple[Trials, Episodes] | None = None,
) -> Report:
    """The report of what a ledger holds, or of what was `read` of it; `about` is what the run's
    file says of it."""
    meta, (trials, episodes) = ledger.meta(), read or ledger.read()
    return Report.build(
        config=meta.get("config", {}),
        claim=kept_claim(ledger, about),
        trials=trials,
        episodes=episodes,
        throughput=throughput,
        decision=Decision.from_json(meta[KEY]) if KEY in meta else None,
        independent_starts=bool(meta.get("independent_starts", False)),
        kept_errors=[each.to_json() for each in kept_evidence(ledger)],
        provenance=depends_on(ledger, about),
    )


def depends_on(ledger: LedgerView, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's numbers depend on beyond its configuration: what its file says, without where it
    was run from, what the envs of each task told, and its legs where it has several. Empty in runs
    that say nothing of it."""
    if "code" not in about:
        return {}
    limit = ledger.meta().get("config", {}).get("max_steps")
    tasks = {
        f"{suite}/{task}": {
            "control_rate": spec.task.control_rate,
            "max_steps": limit or spec.task.max_steps,
            "success_rule": spec.task.success_rule,
            **spec.task.scoring,
            **spec.facts,
        }
        for (suite, task), spec in ledger.specs().items()
    }
    known = {k: v for k, v in about.items() if k not in _NO_PART}
    legs = _legs_told(ledger.legs())
    return {**known, "tasks": tasks, **({"legs": legs} if len(legs) > 1 else {})}


_NO_PART = ("format", "command", "exactness", "lanes")
"""What a run's file says that its numbers do not depend on."""


def _legs_told(legs: Sequence[KeptLeg]) -> list[dict[str, Any]]:
    """How many episodes came of legs that are alike, and in what these differ from the first."""
    told: dict[tuple[str, ...], dict[str, Any]] = {}
    for leg in legs:
        first = legs[0].provenance
        differs = [*leg.provenance.get("changed", ()), *changes(first, leg.provenance)]
        differs += changes(first, leg.provenance, hardware=True)
        one = told.setdefault(tuple(differs), {"legs": 0, "episodes": 0, "differs": differs})
        one["legs"] += 1
        one["episodes"] += leg.episodes
    return list(told.values())
