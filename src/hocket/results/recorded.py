"""A run as its folder tells it: what pages and exports are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.core.data import Episode, Trial
from hocket.errors import DamagedSegmentError, RunFolderError
from hocket.records.evidence import Evidence, kept_evidence
from hocket.records.folder import RunFolder
from hocket.records.labels import load_labels
from hocket.records.ledger.view import Failure, LedgerView
from hocket.records.run_file import load_about
from hocket.records.state_rows import KeptStates
from hocket.records.video.selection import VideoSelection
from hocket.results.comparing.decision import KEY, Decision
from hocket.results.exactness import kept_claim
from hocket.results.report import FILE_NAME, Report, Throughput
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
    trials: Sequence[Trial]
    failures: Sequence[Failure] = ()
    evidence: Sequence[Evidence] = ()
    """What is kept of the attempts that were lost."""
    filmed_tasks: frozenset[tuple[str, str]] = frozenset()
    """Suite and task of the envs that have cameras and can be shown again from their states."""
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
        return list(dict.fromkeys(trial.suite for trial in self.trials))

    def task_name(self, trial: Trial) -> str:
        """The task, with its suite where there are several."""
        return f"{trial.suite} / {trial.task}" if len(self.report.suites) > 1 else trial.task

    def videos(self, episode: Episode) -> list[str]:
        """An episode's videos, relative to the folder: those sealed with it, and those rendered
        since."""
        attempt = RunFolder.at(self.folder).attempt(episode.trial, episode.attempt)
        later = [path.relative_to(self.folder).as_posix() for path in attempt.glob("[!.]*.mp4")]
        sealed = [file for file in episode.files if file.endswith(".mp4")]
        return list(dict.fromkeys([*sealed, *sorted(later)]))

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
            and kept.has(episode)
        ]

    def _is_filmed(self, episode: Episode) -> bool:
        attempt = RunFolder.at(self.folder).attempt(episode.trial, episode.attempt)
        # A draft is what an interruption left, perhaps between two cameras.
        return bool(self.videos(episode)) and not any(attempt.glob(f".*{TEMPORARY}"))


def open_recorded(folder: Path, report: Report | None = None) -> RecordedRun:
    """Read a run folder, with its ledger or, where it has none, from its report alone."""
    root = RunFolder.at(folder)
    about = load_about(root.root)
    if not root.ledger.exists():
        if not (root.root / FILE_NAME).exists():
            raise RunFolderError(
                f"There is no run in {str(root.root)!r}: it has neither a ledger nor a {FILE_NAME}."
            )
        report = Report.load(root.root)
        trials = [episode.trial for episode in report.episodes]
        return RecordedRun(folder=root.root, report=report, about=about, trials=trials)
    timing, damage = None, None
    try:
        timing = load_timing(root)
    except DamagedSegmentError as exc:
        # What became of the trials is in the ledger, and as true as before.
        damage = str(exc)
    with LedgerView.open(root) as ledger:
        trials, failures = ledger.trials(), ledger.failures()
        specs, evidence = ledger.specs(), kept_evidence(ledger)
        report = report or build_report(ledger, about, Throughput())
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
        labels=load_labels(root.root),
        timing=timing,
        damage=damage,
    )


def build_report(ledger: LedgerView, about: Mapping[str, Any], throughput: Throughput) -> Report:
    """The report of what a ledger holds; `about` is what the run's file says of it."""
    meta = ledger.meta()
    return Report.build(
        config=meta.get("config", {}),
        claim=kept_claim(meta, about),
        trials=ledger.trials(),
        episodes=ledger.episodes(),
        throughput=throughput,
        decision=Decision.from_json(meta[KEY]) if KEY in meta else None,
        kept_errors=[each.to_json() for each in kept_evidence(ledger)],
        provenance=depends_on(ledger, about),
    )


def depends_on(ledger: LedgerView, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's numbers depend on beyond its configuration: what its file says, without where it
    was run from, and what the envs of each task told. Empty in runs that say nothing of it."""
    if "code" not in about:
        return {}
    tasks = {
        f"{suite}/{task}": {
            "control_rate": spec.task.control_rate,
            "max_steps": spec.task.max_steps,
            "success_rule": spec.task.success_rule,
            **spec.facts,
        }
        for (suite, task), spec in ledger.specs().items()
    }
    known = {k: v for k, v in about.items() if k not in ("command", "exactness", "lanes")}
    return {**known, "tasks": tasks}
