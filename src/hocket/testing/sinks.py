"""Conformance checks for sinks: each rule is a sentence, named when it is broken."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.contracts.env import abilities_of
from hocket.core.contracts.recorder import (
    AttemptStart,
    Selective,
    Sink,
    SinkNeeds,
    StepRecord,
    Track,
)
from hocket.core.data import Array, Outcome, TaskInfo, Trial
from hocket.testing.findings import (
    Finding,
    Rules,
    all_broken,
    conclude,
    first_broken,
    require,
)
from hocket.testing.toy import ToyConfig, ToySuite
from hocket.workers.spaces import flatten

_STEPS = 8


def check_sink(
    make: Callable[[], Sink],
    *,
    record: Mapping[str, Any] | None = None,
    abilities: Sequence[str] | None = None,
) -> None:
    """Raise ConformanceError with every rule that the sinks made by `make` break.

    They are fed short attempts of a toy env with two cameras, in a temporary folder. `record` is
    what the engine asks for in these attempts; `abilities` are said to be the env's, where a sink
    goes by them (None says the truth).
    """
    conclude("The sink", sink_findings(make, record=record, abilities=abilities))


def sink_findings(
    make: Callable[[], Sink],
    *,
    record: Mapping[str, Any] | None = None,
    abilities: Sequence[str] | None = None,
) -> list[Finding]:
    """Every rule that the sinks made by `make` break; none means that workers can record with
    them."""
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(make, Path(folder), dict(record or {}), abilities)
        return first_broken(_BASICS, bench) or all_broken(_RULES, bench, bench.fresh)


class _Bench:
    """Feeds the sink on trial with attempts of a toy, each in a folder of its own."""

    def __init__(
        self,
        make: Callable[[], Sink],
        folder: Path,
        record: Mapping[str, Any],
        abilities: Sequence[str] | None,
    ) -> None:
        self._make = make
        self._folder = folder
        self._record = record
        self._attempts = 0
        suite = ToySuite("image", ToyConfig(length_min=_STEPS, length_max=_STEPS, image_size=32))
        self._task: TaskInfo = suite.tasks()[0]
        self._env = suite.make(self._task.name)
        self.abilities = tuple(abilities_of(self._env) if abilities is None else abilities)
        self.sink = make()

    def fresh(self) -> Sink:
        self.sink = self._make()
        return self.sink

    @property
    def needs(self) -> SinkNeeds:
        """What the sink asks for in these attempts."""
        if isinstance(self.sink, Selective):
            return self.sink.needs_of(self._task, self._record, self.abilities)
        return self.sink.needs

    def start(self, seed: int = 0) -> AttemptStart:
        """What a sink is told of the next attempt."""
        self._attempts += 1
        trial = Trial(suite="toy", task=self._task.name, seed=seed)
        return AttemptStart(
            trial=trial,
            attempt=self._attempts,
            task=self._task,
            prompt=self._task.prompt,
            folder=str(self._folder / "episodes" / trial.slug / str(self._attempts)),
            record=self._record,
            abilities=self.abilities,
        )

    def steps(self, seed: int = 0) -> list[StepRecord]:
        """The steps of an attempt, with what the sink asked for and no more."""
        needs, env = self.needs, self._env
        sees_all = needs.observations or needs.all_cameras or bool(needs.cameras)
        raw = env.reset(seed=seed)[0]
        steps = [self._step(raw, 0, None, (0.0, False, None), needs)]
        for step, action in enumerate(_actions(seed), 1):
            raw, reward, terminated, _, info = env.step(action)
            told = (reward, terminated, info.get("success"))
            steps.append(self._step(raw if sees_all else None, step, action, told, needs))
        return steps

    def _step(
        self,
        raw: Any,
        step: int,
        action: Array | None,
        told: tuple[float, bool, bool | None],
        needs: SinkNeeds,
    ) -> StepRecord:
        env: Any = self._env
        return StepRecord(
            step=step,
            action=action,
            reward=told[0],
            terminated=told[1],
            truncated=False,
            success=told[2],
            chunk=-1 if action is None else (step - 1) // 4,
            age=0 if action is None else (step - 1) % 4,
            observation=None if raw is None else flatten(raw)[0],
            state=env.get_state() if needs.states else None,
        )

    def seal(self, track: Track, steps: Sequence[StepRecord]) -> dict[str, bytes]:
        """The files of an attempt, by name, once it was recorded to its end."""
        for record in steps:
            track.step(record)
        files = [Path(file) for file in track.seal(Outcome.FAILURE)]
        return {file.name: file.read_bytes() for file in files}


def _actions(seed: int) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, (_STEPS, 4)).astype(np.float32)


def _files(start: AttemptStart) -> list[str]:
    return sorted(str(path) for path in Path(start.folder).rglob("*") if not path.is_dir())


def _tells_needs(bench: _Bench) -> None:
    needs = [bench.sink.needs, bench.needs]
    for each in needs:
        require(isinstance(each, SinkNeeds), f"It is a {type(each).__name__}.")


def _records(bench: _Bench) -> None:
    start = bench.start()
    track = bench.sink.open(start)
    for record in bench.steps():
        track.step(record)
    files = [str(file) for file in track.seal(Outcome.SUCCESS)]
    for file in files:
        require(Path(file).is_absolute(), f"{file!r} is not absolute.")
        require(Path(file).is_file(), f"{file!r} does not exist.")
        require(Path(start.folder) in Path(file).parents, f"{file!r} is in another folder.")
    left = sorted(set(_files(start)) - set(files))
    require(not left, f"{left} was left, and not named.")


def _writes_late(bench: _Bench) -> None:
    start = bench.start()
    track = bench.sink.open(start)
    there = Path(start.folder).exists()
    track.discard()
    require(not there, "open() made the attempt's folder: make it on the first write.")


def _discards(bench: _Bench) -> None:
    for count in (0, 1, _STEPS):
        start = bench.start()
        track = bench.sink.open(start)
        for record in bench.steps()[:count]:
            track.step(record)
        track.discard()
        left = _files(start)
        require(not left, f"After {count} steps {left} was left.")


def _spares_steps(bench: _Bench) -> None:
    track = bench.sink.open(bench.start())
    for record in bench.steps():
        arrays = {**(record.observation or {}), "action": record.action, "state": record.state}
        before = {key: None if array is None else array.tobytes() for key, array in arrays.items()}
        track.step(record)
        for key, array in arrays.items():
            if array is not None:
                require(array.tobytes() == before[key], f"{key!r} changed.")
    track.discard()


def _copies(bench: _Bench) -> None:
    expected = bench.seal(bench.sink.open(bench.start()), bench.steps())
    track = bench.sink.open(bench.start())
    for record in bench.steps():
        track.step(record)
        for array in (record.action, *(record.observation or {}).values()):
            if array is not None:
                array[...] = 0  # An env may write its next step into the same memory.
    found = {Path(file).name: Path(file).read_bytes() for file in track.seal(Outcome.FAILURE)}
    require(found == expected, "Arrays that changed later changed what was recorded: copy them.")


def _repeats(bench: _Bench) -> None:
    one = bench.seal(bench.sink.open(bench.start()), bench.steps())
    bench.seal(bench.sink.open(bench.start(seed=1)), bench.steps(seed=1))
    other = bench.seal(bench.sink.open(bench.start()), bench.steps())
    require(one == other, "The same attempt gave other files after another one.")


def _keeps_apart(bench: _Bench) -> None:
    alone = [bench.seal(bench.sink.open(bench.start(seed)), bench.steps(seed)) for seed in (0, 1)]
    steps = [bench.steps(seed) for seed in (0, 1)]
    tracks = [bench.sink.open(bench.start(seed)) for seed in (0, 1)]
    for pair in zip(*steps, strict=True):
        for track, record in zip(tracks, pair, strict=True):
            track.step(record)
    together = [bench.seal(track, ()) for track in tracks]
    require(alone == together, "Recorded at the same time, two attempts gave other files.")


_BASICS: Rules = (
    ("needs says what the sink asks for.", _tells_needs),
    ("seal() names files of the attempt's folder, all of them, as absolute paths.", _records),
)
_RULES: Rules = (
    ("open() leaves the disk alone.", _writes_late),
    ("discard() leaves nothing.", _discards),
    ("step() leaves its record as it was.", _spares_steps),
    ("step() copies what it keeps.", _copies),
    ("The same attempt gives the same files, whatever was recorded before.", _repeats),
    ("Two attempts at the same time do not mix.", _keeps_apart),
)
