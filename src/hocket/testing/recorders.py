"""Conformance checks for readers and sinks: each rule is a sentence, named when it is broken."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from hocket.core.contracts.env import abilities_of
from hocket.core.contracts.recorder import (
    AttemptStart,
    Durable,
    Reader,
    Selective,
    Sink,
    SinkNeeds,
    StepRecord,
    Track,
)
from hocket.core.data import Outcome, Trial
from hocket.core.events import Event, Noted, RunStarted
from hocket.testing.findings import (
    Bench,
    Broken,
    Finding,
    Rules,
    examine,
    raising,
    require,
    wait_until,
)
from hocket.testing.toy import CameraToyEnv, ToyConfig, ToySuite
from hocket.workers.env.spaces import flatten

_STEPS = 8


def reader_findings(
    make: Callable[[Sequence[Trial]], Reader], *, deadline_s: float = 60.0
) -> list[Finding]:
    """Every rule that the readers made by `make(trials)` break; none means that the engine can
    tell them of a run.

    A small run of a toy env is made in this process, in which one attempt is lost, and each reader
    is told its events. `trials` are those that the run plans.
    """
    return examine(_ReaderBench(make, deadline_s), _READER_BASICS, lambda: _READER_RULES)


def sink_findings(
    make: Callable[[], Sink],
    *,
    record: Mapping[str, Any] | None = None,
    abilities: Sequence[str] | None = None,
) -> list[Finding]:
    """Every rule that the sinks made by `make` break; none means that workers can record with
    them.

    They are fed short attempts of a toy env with two cameras, in a temporary folder. `record` is
    what the engine asks for in these attempts; `abilities` are said to be the env's, where a sink
    goes by them (None says the truth).
    """
    with tempfile.TemporaryDirectory() as folder:
        bench = _SinkBench(make, Path(folder), dict(record or {}), abilities)
        return examine(bench, _SINK_BASICS, lambda: _SINK_RULES)


check_reader = raising("The reader", reader_findings)
check_sink = raising("The sink", sink_findings)


# -- Readers -------------------------------------------------------------------------------------


class _ReaderBench(Bench[Reader]):
    """Makes readers, and has the events that they are told."""

    def __init__(self, make: Callable[[Sequence[Trial]], Reader], deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.events = _record()
        started = self.events[0]
        assert isinstance(started, RunStarted)
        super().__init__(functools.partial(make, started.trials))

    @contextmanager
    def reader(self, told: int = 0) -> Iterator[Reader]:
        """A new reader that was told the first events; closed in the end."""
        reader = self._make()
        try:
            for event in self.events[:told]:
                try:
                    reader.on(event)
                except Exception as exc:
                    name = type(event).__name__
                    raise Broken(f"At {name} it raised {type(exc).__name__}: {exc}.") from exc
            yield reader
        finally:
            reader.close()


@functools.lru_cache(maxsize=1)
def _record() -> Sequence[Event]:
    """All events of a small run: three trials on one lane, one of which is tried twice."""
    from hocket.runs.evaluation import evaluate

    events: list[Event] = []
    keeper: Any = SimpleNamespace(on=events.append, close=lambda: None)
    with tempfile.TemporaryDirectory() as folder:
        faults = {"raise_at": 3, "fault_seed": 1, "once_file": os.path.join(folder, "once")}
        evaluate(
            env="toy:count",
            policy="scripted",
            episodes=3,
            lanes=1,
            env_config={"length_min": 20, "length_max": 40, **faults},
            readers=[keeper],
        )
    return (*events, Noted(text="This is the end of a run that checks a reader."))


def _is_reader(bench: _ReaderBench) -> None:
    """make(trials) gives a reader."""
    for name in ("on", "close"):
        require(callable(getattr(bench.held, name, None)), f"It has no {name}().")


def _follows(bench: _ReaderBench) -> None:
    """on() takes every event of a run, in order."""
    with bench.reader(told=len(bench.events)):
        pass


def _spares_events(bench: _ReaderBench) -> None:
    """on() leaves events as they were."""
    with bench.reader() as reader:
        for event in bench.events:
            before = pickle.dumps(event)
            reader.on(event)
            same = before == pickle.dumps(event)
            require(same, f"{type(event).__name__} changed, which others read as well.")


def _catches_up(bench: _ReaderBench) -> None:
    """behind() answers True or False, and False once there was time."""
    with bench.reader() as reader:
        if isinstance(reader, Durable):
            for event in bench.events:
                reader.on(event)
                answer = reader.behind()
                require(isinstance(answer, bool), f"It answered {answer!r}.")
            seconds = bench.deadline_s
            wait_until(lambda: not reader.behind(), seconds, f"It is behind after {seconds} s.")


def _breaks_off(bench: _ReaderBench) -> None:
    """close() may be called in the middle of a run."""
    for count in (0, 1, len(bench.events) // 2):
        with bench.reader(told=count):
            pass


def _closes(bench: _ReaderBench) -> None:
    """close() may be called twice."""
    with bench.reader(told=len(bench.events)) as reader:
        reader.close()


_READER_BASICS: Rules = (_is_reader, _follows)
_READER_RULES: Rules = (_spares_events, _catches_up, _breaks_off, _closes)


# -- Sinks ---------------------------------------------------------------------------------------


class _SinkBench(Bench[Sink]):
    """Feeds sinks with attempts of a toy, each in a folder of its own."""

    def __init__(
        self,
        make: Callable[[], Sink],
        folder: Path,
        record: Mapping[str, Any],
        abilities: Sequence[str] | None,
    ) -> None:
        super().__init__(make)
        self._folder = folder
        self._record = record
        self._attempts = 0
        config = ToyConfig(length_min=_STEPS, length_max=_STEPS, image_size=32)
        self._task = ToySuite("image", config).tasks()[0]
        self._env = CameraToyEnv("image", config)
        self.abilities = tuple(abilities_of(self._env) if abilities is None else abilities)

    def close(self) -> None:
        """A sink has nothing to close; its tracks end by themselves."""
        self._held = None

    @property
    def needs(self) -> SinkNeeds:
        sink = self.held
        if isinstance(sink, Selective):
            return sink.needs_of(self._task, self._record, self.abilities)
        return sink.needs

    def open(self, seed: int = 0) -> tuple[Track, Path]:
        """Begin to record the next attempt; gives its folder as well."""
        self._attempts += 1
        trial = Trial(suite="toy", task=self._task.name, seed=seed)
        folder = self._folder / "episodes" / trial.slug / str(self._attempts)
        start = AttemptStart(
            trial=trial,
            attempt=self._attempts,
            task=self._task,
            prompt=self._task.prompt,
            folder=str(folder),
            record=self._record,
            abilities=self.abilities,
        )
        return self.held.open(start), folder

    def steps(self, seed: int = 0) -> Iterator[StepRecord]:
        """The steps of an attempt, with what the sink asked for and no more."""
        needs, env = self.needs, self._env
        sees_all = needs.observations or needs.all_cameras or bool(needs.cameras)
        turn: Any = (env.reset(seed=seed)[0], 0.0, False, False, {})
        actions = np.random.default_rng(seed).uniform(-1, 1, (_STEPS, 4)).astype(np.float32)
        for step in range(_STEPS + 1):
            if step:
                turn = env.step(actions[step - 1])
            raw, reward, terminated, truncated, info = turn
            yield StepRecord(
                step=step,
                action=actions[step - 1] if step else None,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                success=info.get("success"),
                chunk=(step - 1) // 4,
                age=(step - 1) % 4 if step else 0,
                observation=flatten(raw)[0] if sees_all or not step else None,
                state=env.get_state() if needs.states else None,
            )

    def record(self, seed: int = 0) -> dict[str, bytes]:
        """The files of an attempt that was recorded to its end."""
        track, _ = self.open(seed)
        for record in self.steps(seed):
            track.step(record)
        return _seal(track)


def _seal(track: Track) -> dict[str, bytes]:
    files = [Path(file) for file in track.seal(Outcome.FAILURE)]
    return {file.name: file.read_bytes() for file in files}


def _files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if not path.is_dir())


def _tells_needs(bench: _SinkBench) -> None:
    """needs says what the sink asks for."""
    for needs in (bench.held.needs, bench.needs):
        require(isinstance(needs, SinkNeeds), f"It is a {type(needs).__name__}.")


def _records(bench: _SinkBench) -> None:
    """seal() names files of the attempt's folder, all of them, as absolute paths."""
    track, folder = bench.open()
    for record in bench.steps():
        track.step(record)
    files = [str(file) for file in track.seal(Outcome.SUCCESS)]
    for file in files:
        require(Path(file).is_absolute(), f"{file!r} is not absolute.")
        require(Path(file).is_file(), f"{file!r} does not exist.")
        require(folder in Path(file).parents, f"{file!r} is in another folder.")
    left = sorted(set(_files(folder)) - set(files))
    require(not left, f"{left} was left, and not named.")


def _writes_late(bench: _SinkBench) -> None:
    """open() leaves the disk alone."""
    track, folder = bench.open()
    there = folder.exists()
    track.discard()
    require(not there, "open() made the attempt's folder: make it on the first write.")


def _discards(bench: _SinkBench) -> None:
    """discard() leaves nothing."""
    for count in (0, 1, _STEPS):
        track, folder = bench.open()
        for record in itertools.islice(bench.steps(), count):
            track.step(record)
        track.discard()
        left = _files(folder)
        require(not left, f"After {count} steps {left} was left.")


def _spares_steps(bench: _SinkBench) -> None:
    """step() leaves its record as it was."""
    track, _ = bench.open()
    for record in bench.steps():
        given = {**(record.observation or {}), "action": record.action, "state": record.state}
        arrays = {key: array for key, array in given.items() if array is not None}
        before = {key: array.tobytes() for key, array in arrays.items()}
        track.step(record)
        for key, array in arrays.items():
            require(array.tobytes() == before[key], f"{key!r} changed.")
    track.discard()


def _copies(bench: _SinkBench) -> None:
    """step() copies what it keeps."""
    expected = bench.record()
    track, _ = bench.open()
    for record in bench.steps():
        track.step(record)
        for array in (record.action, *(record.observation or {}).values()):
            if array is not None:
                array[...] = 0  # An env may write its next step into the same memory.
    found = _seal(track)
    require(found == expected, "Arrays that changed later changed what was recorded: copy them.")


def _repeats(bench: _SinkBench) -> None:
    """The same attempt gives the same files, whatever was recorded before."""
    one, _, other = bench.record(), bench.record(seed=1), bench.record()
    require(one == other, "The same attempt gave other files after another one.")


def _keeps_apart(bench: _SinkBench) -> None:
    """Two attempts at the same time do not mix."""
    alone = [bench.record(seed) for seed in (0, 1)]
    # One env gives the steps of both, so those of the first are taken whole.
    steps = [list(bench.steps(seed)) for seed in (0, 1)]
    tracks = [bench.open(seed)[0] for seed in (0, 1)]
    for pair in zip(*steps, strict=True):
        for track, record in zip(tracks, pair, strict=True):
            track.step(record)
    together = [_seal(track) for track in tracks]
    require(alone == together, "Recorded at the same time, two attempts gave other files.")


_SINK_BASICS: Rules = (_tells_needs, _records)
_SINK_RULES: Rules = (
    _writes_late,
    _discards,
    _spares_steps,
    _copies,
    _repeats,
    _keeps_apart,
)
