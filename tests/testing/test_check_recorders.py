"""Each rule of check_reader and check_sink catches one that breaks it, and ours keep them all."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.core import plugins
from hocket.core.contracts.recorder import AttemptStart, SinkNeeds, StepRecord
from hocket.core.data import Outcome, Trial
from hocket.core.events import AttemptFailed, ChunksExecuted, Event, RunEnded
from hocket.records.ledger.ledger import Ledger
from hocket.results.showing.progress import ProgressDisplay
from hocket.results.showing.tally import Tally
from hocket.testing import (
    ConformanceError,
    check_reader,
    check_sink,
    reader_findings,
    sink_findings,
)


class Listener:
    """A sound reader."""

    def __init__(self, trials: Sequence[Trial] = ()) -> None:
        self.heard: list[Event] = []

    def on(self, event: Event) -> None:
        self.heard.append(event)

    def close(self) -> None: ...

    def behind(self) -> Any:
        return False


class NoClose:
    def __init__(self, trials: Sequence[Trial]) -> None: ...

    def on(self, event: Event) -> None: ...


class Faultless(Listener):
    """Does not know that attempts can fail."""

    def on(self, event: Event) -> None:
        assert not isinstance(event, AttemptFailed)


class Writing(Listener):
    def on(self, event: Event) -> None:
        if isinstance(event, ChunksExecuted) and isinstance(event.lanes, list):
            event.lanes.append(7)


class Vague(Listener):
    def behind(self) -> Any:
        return len(self.heard)


class Slow(Listener):
    def behind(self) -> Any:
        return bool(self.heard)


class Impatient(Listener):
    """Wants every run to be whole."""

    def close(self) -> None:
        assert not self.heard or any(isinstance(event, RunEnded) for event in self.heard)


class FragileClose(Listener):
    is_closed = False

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


BROKEN_READERS = [
    (NoClose, "make(trials) gives a reader."),
    (Faultless, "on() takes every event of a run"),
    (Writing, "on() leaves events as they were."),
    (Vague, "behind() answers True or False"),
    (Slow, "behind() answers True or False"),
    (Impatient, "close() may be called in the middle of a run."),
    (FragileClose, "close() may be called twice."),
]


@pytest.mark.parametrize(
    "make", [Listener, lambda _: Tally(), lambda _: ProgressDisplay(quiet=True)]
)
def test_readers_that_keep_nothing_on_disk_are_sound(make: Callable[[Any], Any]) -> None:
    check_reader(make)


def test_the_progress_in_a_log_is_sound() -> None:
    check_reader(lambda _: ProgressDisplay(stream=io.StringIO()))


def test_the_ledger_is_sound(tmp_path: Path) -> None:
    folders = iter(range(100))
    check_reader(lambda trials: Ledger.create(tmp_path / str(next(folders)), trials, {}))


@pytest.mark.parametrize(("make", "rule"), BROKEN_READERS)
def test_a_broken_reader_is_told_which_rule_it_breaks(
    make: Callable[[Any], Any], rule: str
) -> None:
    findings = reader_findings(make, deadline_s=0.1)
    assert [finding.rule.startswith(rule) for finding in findings] == [True], findings
    with pytest.raises(ConformanceError):
        check_reader(make, deadline_s=0.1)


class Rewards:
    """A sound sink: the rewards of an attempt in one file."""

    needs: Any = SinkNeeds()

    def open(self, start: AttemptStart) -> Any:
        return RewardTrack(Path(start.folder))


class RewardTrack:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: list[Any] = []

    def step(self, record: StepRecord) -> None:
        self.kept.append(record.reward)

    def seal(self, outcome: Outcome) -> Sequence[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        np.save(self.folder / "rewards.npy", np.array(self.kept))
        return [str(self.folder / "rewards.npy")]

    def discard(self) -> None: ...


def sink(kind: type[RewardTrack], **more: Any) -> Callable[[], Any]:
    """A maker of sinks with tracks of this kind."""
    return type("Broken", (Rewards,), {"open": lambda _, start: kind(Path(start.folder)), **more})


class RelativeTrack(RewardTrack):
    def seal(self, outcome: Outcome) -> Sequence[str]:
        return [Path(file).name for file in super().seal(outcome)]


class LyingTrack(RewardTrack):
    def seal(self, outcome: Outcome) -> Sequence[str]:
        return [str(self.folder / "rewards.npy")]


class LitteringTrack(RewardTrack):
    def seal(self, outcome: Outcome) -> Sequence[str]:
        super().seal(outcome)
        return []


class EagerTrack(RewardTrack):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True)


class LeavingTrack(RewardTrack):
    def discard(self) -> None:
        self.seal(Outcome.ERROR)


class WritingTrack(RewardTrack):
    def step(self, record: StepRecord) -> None:
        super().step(record)
        if record.action is not None:
            record.action[0] = 7


class LazyTrack(RewardTrack):
    """Keeps views of actions."""

    def step(self, record: StepRecord) -> None:
        if record.action is not None:
            self.kept.append(record.action)


class Counting(Rewards):
    """Every attempt has a number of its own in its file."""

    opened = 0

    def open(self, start: AttemptStart) -> Any:
        self.opened += 1
        track = RewardTrack(Path(start.folder))
        track.kept.append(self.opened)
        return track


class Mixing(Rewards):
    """All attempts that are open at the same time share a list."""

    shared: tuple[list[Any], int] = ([], 0)

    def open(self, start: AttemptStart) -> Any:
        sink = self
        if not self.shared[1]:
            self.shared = ([], 0)
        self.shared = (self.shared[0], self.shared[1] + 1)

        class Track(RewardTrack):
            def seal(self, outcome: Outcome) -> Sequence[str]:
                self.discard()
                return super().seal(outcome)

            def discard(self) -> None:
                sink.shared = (sink.shared[0], sink.shared[1] - 1)

        track = Track(Path(start.folder))
        track.kept = self.shared[0]
        return track


BROKEN_SINKS = [
    (sink(RewardTrack, needs={"states": True}), "needs says what the sink asks for."),
    (sink(RelativeTrack), "seal() names files"),
    (sink(LyingTrack), "seal() names files"),
    (sink(LitteringTrack), "seal() names files"),
    (sink(EagerTrack), "open() leaves the disk alone."),
    (sink(LeavingTrack), "discard() leaves nothing."),
    (sink(WritingTrack), "step() leaves its record as it was."),
    (sink(LazyTrack), "step() copies what it keeps."),
    (Counting, "The same attempt gives the same files"),
    (Mixing, "Two attempts at the same time do not mix."),
]


@pytest.mark.parametrize(
    ("name", "config", "asked"),
    [
        ("steps", {}, {}),
        ("steps", {"largest": None}, {}),
        ("states", {}, {}),
        ("states", {"only_with_video": True}, {"video": "all"}),
        ("video", {}, {}),
        ("video", {}, {"video": "all"}),
        ("video", {"lossless": True}, {"images": "all"}),
    ],
)
def test_our_sinks_are_sound(name: str, config: dict[str, Any], asked: dict[str, Any]) -> None:
    # An env that cannot be filmed afterwards is filmed as it runs.
    abilities = ["cameras"] if name == "video" else None
    check_sink(lambda: plugins.build("recorders", name, config), record=asked, abilities=abilities)


def test_a_sound_sink_passes() -> None:
    check_sink(Rewards)


@pytest.mark.parametrize(("make", "rule"), BROKEN_SINKS)
def test_a_broken_sink_is_told_which_rule_it_breaks(make: Callable[[], Any], rule: str) -> None:
    findings = sink_findings(make)
    assert any(finding.rule.startswith(rule) for finding in findings), findings
    with pytest.raises(ConformanceError):
        check_sink(make)
