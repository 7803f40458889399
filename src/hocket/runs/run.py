"""A run: planned trials, what has come of them so far, and its folder where it has one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader
from hocket.core.data import Exactness, Trial
from hocket.core.events import Noted, TrialsPlanned
from hocket.engine.trials import TrialQueue
from hocket.errors import PolicyHungError, UsageError
from hocket.records.chunks import ChunkRows
from hocket.records.evidence import Salvage, kept_evidence
from hocket.records.ledger.episodes import Episodes
from hocket.records.ledger.ledger import Ledger
from hocket.records.provenance import this_process, versions
from hocket.records.run_file import load_about
from hocket.results.comparing.sequential import KEY as DECISION
from hocket.results.comparing.sequential import Decision
from hocket.results.exactness import Claim, kept_claim
from hocket.results.page.report_page import write_report_page
from hocket.results.recorded import build_report, depends_on, of_all_legs
from hocket.results.report import Report
from hocket.results.run_folder import clear_unbegun, rebuild_report, remove_if_empty
from hocket.results.showing.live import LiveStatus
from hocket.results.showing.tally import Tally
from hocket.runs.assembly import Assembly, Recording
from hocket.runs.config import EvalConfig
from hocket.runs.early_stop import decider_of, rounds_of
from hocket.runs.elsewhere import Elsewhere, Keeping, Work
from hocket.runs.policies import close_policy
from hocket.runs.readers import AboutReader, ExactnessReader, LegReader, tell
from hocket.runs.rollout import Rollout, fixed_delay
from hocket.runs.video import (
    recorded_by,
    render_wanted,
    require_encoders,
    sinks_of,
    without_impossible_video,
)
from hocket.workers.fleet import Fleet
from hocket.workers.lending import Fleets

_AHEAD = 64
"""Trials that are planned ahead where a comparison may be decided, on machines whose lanes are not
known beforehand."""


class Run:
    """An evaluation under way. With a folder, whatever has ended stays, whatever happens; a run
    without one lives in memory alone."""

    def __init__(
        self,
        config: EvalConfig,
        trials: Sequence[Trial],
        ledger: Ledger | None = None,
        assembly: Assembly | None = None,
    ) -> None:
        self.config = config
        self.assembly = assembly or Assembly(config, config.lanes)
        self._ledger = ledger
        self.decider = decider_of(config, self.assembly) if config.against else None
        self._read = None if ledger is None else ledger.read()
        """What had been planned, and what had ended, when this part of the run began."""
        self.trials, self._done = self._read or (trials, Episodes.of(()))
        self.allows_changes = False
        """True if another program than that of its folder may go on with it."""
        self.is_new = False
        """True if its folder goes with it where no episode ends."""
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
    def new(
        cls, config: EvalConfig, folder: Path | None, trials: Sequence[Trial] | None = None
    ) -> Run:
        """Plan a run, of all that its configuration says or of some `trials`. A folder that is
        given must not hold a run yet."""
        assembly = Assembly(config, config.lanes)
        config = fixed_delay(config, assembly)
        trials = trials or assembly.plan(config.seed, config.episodes)
        assembly.require_envs()
        if config.until == "decided":
            # Only the first round is planned; the decider plans the others while it needs them.
            trials = rounds_of(trials)[0]
        if folder is None:
            return cls(config, trials, assembly=assembly)
        own = assembly.has_independent_starts()
        meta = {"config": config.to_plain(), "independent_starts": own}
        clear_unbegun(folder)
        ledger = Ledger.create(folder, trials, meta)
        try:
            run = cls(config, trials, ledger, assembly)
        except BaseException:
            ledger.close()
            remove_if_empty(folder)
            raise
        run.is_new = True
        return run

    @classmethod
    def open(
        cls, folder: Path, *, infer_timeout_s: float | None = None, allow_changes: bool = False
    ) -> Run:
        """A run that was begun before, perhaps with another deadline for the policy, or to be gone
        on with by another program. What its lost attempts left behind is swept away."""
        ledger = Ledger.open(folder)
        config = EvalConfig.from_plain(ledger.meta()["config"])
        ledger.sweep(Salvage(ledger, config.keep_errors))
        if infer_timeout_s is not None:
            config = replace(config, infer_timeout_s=infer_timeout_s)
        run = cls(config, (), ledger)
        run.allows_changes = allow_changes
        return run

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._hung is None and self.is_new and self.folder is not None:
            remove_if_empty(self.folder)

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
        self.trials = [*self.trials, *trials]

    @property
    def remaining(self) -> list[Trial]:
        """Planned trials that have not ended."""
        if len(self._done) == len(self.trials):
            return []
        ended = {episode.trial for episode in self._done}
        return [trial for trial in self.trials if trial not in ended]

    @property
    def _most(self) -> int:
        """Episodes that may still be run: more than remain, where the run ends by what it finds."""
        return len(self.remaining) if self.decider is None else self.decider.cap - len(self._done)

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
        if not self.remaining and self._ledger is not None and self.folder is not None:
            about = load_about(self.folder)
            ours = functools.partial(build_report, self._ledger, about, read=self._read)
            report = rebuild_report(self.folder, unless=ours)
            on_report(report)
            self._render_videos(report, readers, self._done)
            return report
        leg = None
        if self._ledger is not None and elsewhere is None:
            leg = LegReader(self._ledger, self.config, allows_changes=self.allows_changes)
        if self.folder is not None:
            require_encoders(self.config)
            self._live = LiveStatus(self.folder)
            readers = (*readers, self._live)
            noted = functools.partial(tell, readers)
            self._recorded = without_impossible_video(self.config, noted)
        with contextlib.ExitStack() as stack:
            fleets = fleets or stack.enter_context(Fleets())
            stack.callback(self.assembly.close)
            if elsewhere is not None:
                report = self._roll_elsewhere(elsewhere, readers)
            else:
                report = self._roll_here(policy, readers, fleets, leg, check=check)
            if self.decider is not None:
                self._keep(self.decider.decision)
            if self.folder is not None:
                report.save(self.folder)
            if self._hung is not None:
                self._write_page(report)
                kept = f" Finish the run with: hocket resume {self.folder}" if self.folder else ""
                raise PolicyHungError(f"{self._hung} The run has stopped.{kept}") from self._hung
            on_report(report)
            self._write_page(report)
            if report.complete and self._ledger is not None:
                self._render_videos(report, readers, self._ledger.episodes())
        return report

    def _report(self, tally: Tally, claim: Claim, about: Mapping[str, Any]) -> Report:
        if self._ledger is not None:
            self._ledger.flush()
            claim = kept_claim(self._ledger, about)
        unmade = 0 if self._ledger is None else self._ledger.unmade()
        lost = [] if self._ledger is None else kept_evidence(self._ledger)
        throughput = tally.throughput()
        if self.folder is not None:
            throughput = of_all_legs(self.folder, throughput)
        return Report.build(
            config=self.config.to_plain(),
            claim=claim,
            trials=self.trials,
            episodes=tally.episodes,
            throughput=replace(throughput, unmade_attempts=unmade),
            decision=None if self.decider is None else self.decider.decision,
            independent_starts=self.assembly.has_independent_starts(),
            kept_errors=[each.to_json() for each in lost],
            provenance={} if self._ledger is None else depends_on(self._ledger, about),
        )

    def _roll_here(
        self,
        policy: Policy | None,
        readers: Sequence[Reader],
        fleets: Fleets,
        leg: LegReader | None,
        *,
        check: bool,
    ) -> Report:
        with contextlib.ExitStack() as stack:
            if policy is None:
                # Workers that are kept, of the run before, need no new ones.
                policy = self.assembly.policy(() if fleets.lent else self.remaining)
                stack.callback(self._close, policy)
            if leg is not None:
                leg.read_files(policy)
            try:
                rollout = Rollout.prepare(
                    self.config, self.assembly, policy, self.remaining[0], self._most
                )
            except PolicyHungError:
                self._is_stuck = True
                raise
            same = ExactnessReader(self._ledger, rollout.level)
            readers = (*readers, same)
            if leg is None or self.folder is None:
                tally = self._roll(rollout, readers, fleets, check=check)
                return self._report(tally, same.claim, {})
            leg.begin(policy)
            known = {**this_process(), "exactness": same.claim.level, "lanes": rollout.lanes}
            about = AboutReader(self.folder, self.config, {**known, **leg.known})
            tally = self._roll(rollout, (*readers, about, leg), fleets, check=check)
            for text in leg.end():
                tell(readers, Noted(text=f"Edited while the run went on: {text}."))
            return self._report(tally, same.claim, about.known)

    def _roll_elsewhere(self, elsewhere: Elsewhere, readers: Sequence[Reader]) -> Report:
        if self._ledger is None or self.folder is None:
            raise UsageError("A run on other machines needs a run folder: give it one.")
        # Each site that joins may lower it.
        same = ExactnessReader(self._ledger, "bitwise")
        tally, folder = Tally(), self.folder
        decider = () if self.decider is None else (self.decider,)
        record = recorded_by(self._recorded, self.trials, self._ledger)
        self._ledger.sync_files()
        about = AboutReader(folder, self.config, {**this_process(), "versions": versions()})

        def learn(level: Exactness, more: Mapping[str, Any]) -> None:
            same.lower(level)
            about.put({**more, "exactness": same.claim.level})

        learn("bitwise", {})
        work = Work(
            config=self._recorded,
            folder=self._ledger.folder,
            keeping=Keeping.of(self._ledger),
            planned=self.trials,
            remaining=self.remaining,
            done=self._done,
            readers=(self._ledger, tally, *readers, same, about, record, *decider),
            sinks=sinks_of(self._recorded, self.assembly),
            record=record,
            begin=functools.partial(self._begin_decider, readers=(tally, *readers), ahead=_AHEAD),
            learn=learn,
            at_once=self._most,
            mixed=self.allows_changes,
        )
        elsewhere.roll(work)
        for note in record.notes:
            tell(readers, Noted(text=note))
        return self._report(tally, same.claim, about.known)

    def _close(self, policy: Policy) -> None:
        # To close what never returned might never return either.
        if not self._is_stuck:
            close_policy(policy, self.config.policy)

    def _roll(
        self, rollout: Rollout, readers: Sequence[Reader], fleets: Fleets, *, check: bool
    ) -> Tally:
        record, recording, tally = None, Recording(), Tally()
        if self._ledger is not None:
            self._ledger.attach(ChunkRows(leg=self._ledger.leg))
            record = recorded_by(self._recorded, self.trials, self._ledger)
            record.streams = True
            recording = Recording(
                sinks=sinks_of(self._recorded, self.assembly),
                record=record,
                folder=str(self.folder),
            )
            readers = (self._ledger, *readers, record)
        readers = (tally, *readers)
        heard = readers if self.decider is None else (*readers, self.decider)
        with rollout.engine(fleets, heard, recording, check=check) as engine:
            self._fleet = fleets.lent
            if self._live is not None:
                self._live.follow(engine.look, tally)
            queue = TrialQueue(self.remaining)
            if self.assembly.why_lanes:
                tell(readers, Noted(text=self.assembly.why_lanes))
            self._begin_decider(queue.add, readers=readers, ahead=rollout.lanes)
            try:
                engine.run(
                    queue,
                    planned=self.trials,
                    done=self._done,
                    attempts=self._ledger.next_attempts() if self._ledger else {},
                    cores=self.assembly.cores(rollout.lanes),
                    independent_starts=self.assembly.has_independent_starts(),
                    counts_cpu=self.assembly.is_on_this_machine,
                )
            except PolicyHungError as hung:
                self._hung = hung
            self._is_stuck = engine.is_stuck
        for note in () if record is None else record.notes:
            tell(readers, Noted(text=note))
        return tally

    def _begin_decider(
        self, add: Callable[[Sequence[Trial]], None], *, readers: Sequence[Reader], ahead: int
    ) -> None:
        """Let the decider, where there is one, plan so that `ahead` trials wait for lanes."""
        if self.decider is None:
            return

        def plan(trials: Sequence[Trial]) -> None:
            self.extend(trials)
            add(trials)
            tell(readers, TrialsPlanned(trials=trials))

        self.decider.begin(plan, planned=self.trials, done=self._done, ahead=ahead, keep=self._keep)

    def _render_videos(self, report: Report, readers: Sequence[Reader], ended: Episodes) -> None:
        """Make the videos that are wanted and can only be made of episodes that have ended."""
        assert self._ledger is not None
        made = render_wanted(
            self._recorded,
            self.assembly,
            self._ledger.folder,
            self.trials,
            ended,
            kept_evidence(self._ledger),
            functools.partial(tell, readers),
            self._fleet,
        )
        if made:
            self._write_page(report)

    def _write_page(self, report: Report) -> None:
        if self.folder is not None:
            write_report_page(self.folder, report)

    def _keep(self, decision: Decision) -> None:
        if self._ledger is not None:
            self._ledger.keep(DECISION, decision.to_json())
