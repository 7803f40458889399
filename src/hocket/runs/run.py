"""A run: planned trials, what has come of them so far, and its folder where it has one."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.core.data import Episode, Exactness, Ref, Trial
from hocket.core.events import Event, Noted
from hocket.engine.trials import TrialQueue
from hocket.errors import (
    MissingExtraError,
    PolicyHungError,
    RunFolderError,
    UsageError,
)
from hocket.records.chunks import ChunkRows
from hocket.records.evidence import Evidence, EvidencePlan, Salvage, kept_evidence
from hocket.records.folder import RunFolder
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.schema import has_episodes
from hocket.records.ledger.view import LedgerView
from hocket.records.provenance import FileDigests, places_of, provenance, this_process, versions
from hocket.records.run_file import load_about, load_run
from hocket.records.state_rows import StateRows
from hocket.records.step_rows import StepRows
from hocket.records.video.selection import VideoPlan, VideoSelection
from hocket.results.comparing.decision import KEY as DECISION
from hocket.results.comparing.decision import Decision
from hocket.results.comparing.sequential import Stake
from hocket.results.exactness import Claim
from hocket.results.page.report_page import write_report_page
from hocket.results.recorded import build_report, depends_on
from hocket.results.report import Report, Throughput
from hocket.results.showing.live import LiveStatus
from hocket.results.showing.tally import Tally
from hocket.runs.assembly import Assembly, examine_python
from hocket.runs.config import EvalConfig
from hocket.runs.early_stop import Decider, paired_with, rounds_of, sequential_test
from hocket.runs.elsewhere import Elsewhere, Work
from hocket.runs.measured import fixed_delay
from hocket.runs.readers import AboutReader, ExactnessReader, about_policy
from hocket.runs.rollout import Rollout
from hocket.runs.video import FilmNotes, render_wanted, require_encoders, sinks_of
from hocket.workers.fleet import Fleet, Fleets

_AHEAD = 64
"""Trials that are planned ahead where a comparison may be decided, on machines whose lanes are not
known beforehand. Chosen by hand; no benchmark row."""
_DEFAULT_VIDEO = EvalConfig.__dataclass_fields__["video"].default


class Run:
    """An evaluation under way. With a folder, whatever has ended stays, whatever happens; a run
    without one lives in memory alone."""

    def __init__(
        self, config: EvalConfig, trials: Sequence[Trial], ledger: Ledger | None = None
    ) -> None:
        self.config = config
        self.assembly = Assembly(config, config.lanes)
        self.trials = list(trials)
        self._ledger = ledger
        self.decider = _decider(config, self.assembly)
        self._done: list[Episode] = ledger.episodes() if ledger else []
        self.is_new = False
        """Whether its folder goes with it where no episode ends."""
        self._live: LiveStatus | None = None
        """What is told to who watches, while the run goes on."""
        self._hung: PolicyHungError | None = None
        """Why the run stopped before its end."""
        self._is_stuck = False
        """A call of the policy never returned."""
        self._recorded = config
        """Says what to keep of each step: less than the configuration where it cannot be had."""
        self._fleet: Fleet | None = None
        """The workers of the trials that ended last, where they live here."""

    @classmethod
    def new(cls, config: EvalConfig, folder: Path | None) -> Run:
        """Plan a run. A folder that is given must not hold a run yet."""
        config = fixed_delay(config)
        trials = plan_trials(config)
        assembly = Assembly(config, config.lanes)
        assembly.require_envs()
        if config.until == "decided":
            # Only the first round is planned; the decider plans the others while it needs them.
            trials = rounds_of(trials)[0]
        if folder is None:
            return cls(config, trials)
        meta = {
            "config": config.to_plain(),
            "independent_starts": assembly.has_independent_starts(),
        }
        clear_unbegun(folder)
        ledger = Ledger.create(folder, trials, meta)
        try:
            run = cls(config, trials, ledger)
        except BaseException:
            ledger.close()
            _remove_if_empty(folder)
            raise
        run.is_new = True
        return run

    @classmethod
    def open(cls, folder: Path, *, infer_timeout_s: float | None = None) -> Run:
        """A run that was begun before, perhaps with another deadline for the policy. What its lost
        attempts left behind is swept away."""
        ledger = Ledger.open(folder)
        config = EvalConfig.from_plain(ledger.meta()["config"])
        ledger.sweep(Salvage(ledger, config.keep_errors))
        if infer_timeout_s is not None:
            config = replace(config, infer_timeout_s=infer_timeout_s)
        return cls(config, ledger.trials(), ledger)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._hung is None and self.is_new and self.folder is not None:
            _remove_if_empty(self.folder)

    def close(self) -> None:
        """Give the folder back. Twice is safe."""
        if self._live is not None:
            self._live.close()
        if self._ledger is not None:
            self._ledger.close()

    def extend(self, trials: Sequence[Trial]) -> None:
        """Plan further trials, after those that are planned."""
        if self._ledger is not None:
            self._ledger.add_trials(trials)
        self.trials.extend(trials)

    @property
    def remaining(self) -> list[Trial]:
        """Planned trials that have not ended."""
        ended = {episode.trial.id for episode in self._done}
        return [trial for trial in self.trials if trial.id not in ended]

    @property
    def folder(self) -> Path | None:
        return None if self._ledger is None else self._ledger.folder.root

    def finish(
        self,
        *,
        policy: Policy | None = None,
        readers: Sequence[Reader] = (),
        check: bool = True,
        fleets: Fleets | None = None,
        elsewhere: Elsewhere | None = None,
        on_report: Callable[[Report], None] = lambda _: None,
    ) -> Report:
        """Run what remains; after an interruption the Report says that it is not complete.

        `fleets` lends the workers where they are to be kept for another run; `elsewhere` runs the
        trials on other machines instead. `on_report` is given the Report as soon as the last trial
        has ended; only then are videos made of what ended.
        """
        if not self.remaining and self.folder is not None:
            report = rebuild_report(self.folder)
            on_report(report)
            self._render_videos(readers)
            return report
        if self.folder is not None:
            require_encoders(self.config)
            self._live = LiveStatus(self.folder)
            readers = (*readers, self._live)
            self._recorded = _without_impossible_video(self.config, readers)
        with contextlib.ExitStack() as stack:
            if fleets is None:
                fleets = stack.enter_context(Fleets())
                if elsewhere is None:
                    self.assembly.warm_up()
                    stack.callback(self.assembly.close)
            if elsewhere is not None:
                report = self._roll_elsewhere(elsewhere, readers)
            else:
                report = self._roll_here(policy, readers, fleets, check=check)
            if self.folder is not None:
                report.save(self.folder)
            if self._hung is not None:
                self._write_page()
                kept = f" Finish the run with: hocket resume {self.folder}" if self.folder else ""
                raise PolicyHungError(f"{self._hung} The run has stopped.{kept}") from self._hung
            on_report(report)
            self._write_page()
            if report.complete and self.folder is not None:
                self._render_videos(readers)
        return report

    def _report(self, tally: Tally, claim: Claim, about: Mapping[str, Any]) -> Report:
        return Report.build(
            config=self.config.to_plain(),
            exactness=claim.level,
            checks=claim.checks,
            unseeded=claim.unseeded,
            trials=self.trials,
            episodes=tally.episodes,
            throughput=tally.throughput(),
            decision=None if self.decider is None else self.decider.decision,
            kept_errors=[each.to_json() for each in self._evidence],
            provenance={} if self._ledger is None else depends_on(self._ledger, about),
        )

    def _roll_here(
        self,
        policy: Policy | None,
        readers: Sequence[Reader],
        fleets: Fleets,
        *,
        check: bool,
    ) -> Report:
        with contextlib.ExitStack() as stack:
            if policy is None:
                policy = self.assembly.policy()
                stack.callback(self._close, policy)
            try:
                rollout = Rollout.prepare(
                    self.config, self.assembly, policy, self.remaining[0], len(self.remaining)
                )
            except PolicyHungError:
                self._is_stuck = True
                raise
            same = ExactnessReader(self._ledger, rollout.level)
            readers = (*readers, same)
            if self.folder is None:
                tally = self._roll(rollout, readers, fleets, check=check)
                return self._report(tally, same.claim, {})
            known = {**this_process(), "exactness": same.claim.level, "lanes": rollout.lanes}
            known |= {**provenance(self.config), **about_policy(self.config, policy)}
            about = AboutReader(self.folder, self.config, known)
            digests = FileDigests(places_of(self.config, getattr(policy, "files", ())))
            tally = self._roll(rollout, (*readers, about), fleets, check=check)
            about.add("files", digests.finish())
            return self._report(tally, same.claim, about.known)

    def _roll_elsewhere(self, elsewhere: Elsewhere, readers: Sequence[Reader]) -> Report:
        if self._ledger is None or self.folder is None:
            raise UsageError("A run on other machines needs a run folder: give it one.")
        # Each site that joins may lower it.
        same = ExactnessReader(self._ledger, "bitwise")
        tally, folder = Tally(1), self.folder
        selection = VideoSelection.parse(self._recorded.video)
        decider = () if self.decider is None else (self.decider,)
        asked = VideoPlan(selection, self.trials, images=self._recorded.record == "full")
        record = self._evidence_plan(self._ledger, asked)
        self._attach_files(self._ledger)
        about = AboutReader(folder, self.config, {**this_process(), "versions": versions()})

        def learn(level: Exactness, more: Mapping[str, Any]) -> None:
            same.lower(level)
            about.put({**more, "exactness": same.claim.level})

        learn("bitwise", {})
        work = Work(
            config=self._recorded,
            ledger=self._ledger,
            planned=self.trials,
            remaining=self.remaining,
            done=self._done,
            readers=(self._ledger, tally, *readers, same, about, record, *decider),
            sinks=sinks_of(self._recorded),
            record=record,
            begin=functools.partial(self._begin_decider, ahead=_AHEAD),
            learn=learn,
        )
        elsewhere.roll(work)
        if self.decider is not None:
            self._keep(self.decider.decision)
        return self._report(tally, same.claim, about.known)

    def _attach_files(self, ledger: Ledger) -> None:
        """Let what sinks leave become rows."""
        for recorder in (StepRows, StateRows):
            ledger.attach(recorder(ledger.folder.root))

    def _close(self, policy: Policy) -> None:
        # To close what never returned might never return either.
        if not self._is_stuck:
            policy.close()

    def _roll(
        self,
        rollout: Rollout,
        readers: Sequence[Reader],
        fleets: Fleets,
        *,
        check: bool,
    ) -> Tally:
        selection = VideoSelection.parse(self._recorded.video)
        asked = VideoPlan(selection, self.trials, images=self._recorded.record == "full")
        film_notes = FilmNotes(asked)
        sinks: Sequence[Ref] = ()
        record = None
        if self._ledger is not None:
            record = self._evidence_plan(self._ledger, asked)
            self._ledger.attach(ChunkRows(leg=self._ledger.leg))
            self._attach_files(self._ledger)
            sinks = sinks_of(self._recorded)
            readers = (self._ledger, *readers, film_notes, record)
        if self.decider is not None:
            readers = (*readers, self.decider)
        with rollout.inference() as inference:
            tally = Tally(inference.concurrency)
            engine = rollout.engine(
                inference,
                fleets,
                readers=(tally, *readers),
                sinks=sinks,
                record=record,
                folder=None if self.folder is None else str(self.folder),
                check=check,
            )
            self._fleet = fleets.lent
            if self._live is not None:
                self._live.follow(engine.look, tally)
            queue = TrialQueue(self.remaining)
            self._begin_decider(queue.add, rollout.lanes)
            try:
                engine.run(
                    queue,
                    planned=self.trials,
                    done=self._done,
                    attempts=self._ledger.next_attempts() if self._ledger else {},
                    cores=self.assembly.cores(rollout.lanes),
                )
            except PolicyHungError as hung:
                self._hung = hung
            self._is_stuck = inference.is_stuck
        if self.decider is not None:
            self._keep(self.decider.decision)
        for note in film_notes.notes:
            _tell(readers, Noted(text=note))
        return tally

    def _begin_decider(self, add: Callable[[Sequence[Trial]], None], ahead: int) -> None:
        """Let the decider, where there is one, plan trials ahead of so many lanes."""
        if self.decider is None:
            return

        def plan(trials: Sequence[Trial]) -> None:
            self.extend(trials)
            add(trials)

        self.decider.begin(plan, planned=self.trials, done=self._done, ahead=ahead, keep=self._keep)

    def _evidence_plan(self, ledger: Ledger, asked: VideoPlan) -> EvidencePlan:
        most = self.config.keep_errors
        return EvidencePlan(asked, ledger.folder, most=most, kept=self._evidence)

    @property
    def _evidence(self) -> list[Evidence]:
        return [] if self._ledger is None else kept_evidence(self._ledger)

    def _render_videos(self, readers: Sequence[Reader]) -> None:
        """Make the videos that are wanted and can only be made of episodes that have ended."""
        assert self._ledger is not None
        made = render_wanted(
            self._recorded,
            self._ledger.folder,
            self.trials,
            self._ledger.episodes(),
            self._evidence,
            functools.partial(_tell, readers),
            self._fleet,
        )
        if made:
            self._write_page()

    def _write_page(self) -> None:
        if self.folder is not None:
            write_report_page(self.folder)

    def _keep(self, decision: Decision) -> None:
        if self._ledger is not None:
            self._ledger.keep(DECISION, decision.to_json())


def clear_unbegun(folder: Path) -> None:
    """Take away a run that was killed before any of its episodes had ended: it holds nothing that
    could be lost, and must not stop the same command. One that still goes on raises."""
    found = RunFolder.at(folder)
    if found.ledger.exists():
        with found.lock():
            _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    """Take away what a new run left that ended before any of its episodes did: whoever gives the
    command again shall not be told that its folder holds a run."""
    if has_episodes(RunFolder.at(folder).ledger):
        return
    for child in folder.iterdir():
        if child.is_dir():
            shutil.rmtree(child)
        else:
            child.unlink()
    folder.rmdir()


def rebuild_report(folder: Path) -> Report:
    """The report of what a run's folder holds, whether the run is complete or not. It is kept in
    the folder, unless that cannot be written."""
    with LedgerView.open(folder) as ledger:
        try:
            throughput = Report.load(folder).throughput
        except RunFolderError:
            throughput = Throughput()
        report = build_report(ledger, load_about(folder), throughput)
    if os.access(folder, os.W_OK):
        report.save(folder)
        write_report_page(folder, report)
    return report


def _decider(config: EvalConfig, assembly: Assembly) -> Decider | None:
    if config.against is None:
        return None
    against = Path(config.against)
    other = EvalConfig.from_plain(load_run(against))
    for name in ("env_config", "max_steps"):
        if getattr(other, name) != getattr(config, name):
            raise UsageError(
                f"The trials of {config.against} are not those of this run: its {name} is "
                f"{getattr(other, name)!r}, here it is {getattr(config, name)!r}."
            )
    trials = plan_trials(config)
    with LedgerView.open(against) as ledger:
        baseline = paired_with(trials, ledger.episodes(), config.against)
    rounds = rounds_of(trials)
    bets_on: Stake = "pairs" if assembly.has_independent_starts() else "rounds"
    test = sequential_test(config.sequential, rounds, alpha=config.alpha, bets_on=bets_on)
    return Decider(rounds, baseline, test, against=str(against.resolve()))


def _without_impossible_video(config: EvalConfig, readers: Sequence[Reader]) -> EvalConfig:
    """The configuration, without the videos that nobody asked for by name where the envs'
    interpreter cannot make any: it needs nothing of hocket's installed."""
    has_video = config.record == "full" or VideoSelection.parse(config.video).kind != "none"
    if not has_video or config.env_python is None or not examine_python(config.env_python, "av"):
        return config
    advice = f"{config.env_python} -m pip install 'av>=14'"
    if config.record == "full" or config.video != _DEFAULT_VIDEO:
        raise MissingExtraError(
            f"Video needs the package 'av', which is not installed in {config.env_python}. Run: "
            f"{advice}. To go on without: --video none, and no --record full."
        )
    _tell(readers, Noted(text=f"No videos: {config.env_python} lacks the package 'av' ({advice})."))
    return replace(config, video="none")


def _tell(readers: Sequence[Reader], event: Event) -> None:
    for reader in readers:
        reader.on(event)


def plan_trials(config: EvalConfig) -> list[Trial]:
    """Every trial of the evaluation: seed by seed, all tasks of a seed before the next seed."""
    tasks = Assembly(config, config.lanes).tasks()
    return [
        Trial(suite=suite, task=task.name, seed=config.seed + episode)
        for episode in range(config.episodes)
        for suite, infos in tasks.items()
        for task in infos
    ]
