"""Conformance checks for readers: each rule is a sentence, named when it is broken."""

from __future__ import annotations

import functools
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence

from hocket.core.contracts.recorder import Durable, Reader
from hocket.core.data import Trial
from hocket.core.events import Event, Noted, RunStarted
from hocket.testing.findings import (
    Broken,
    Finding,
    Rules,
    all_broken,
    conclude,
    first_broken,
    require,
)

_LOOK_S = 0.01


def check_reader(make: Callable[[Sequence[Trial]], Reader], *, deadline_s: float = 60.0) -> None:
    """Raise ConformanceError with every rule that the readers made by `make(trials)` break.

    A small run of a toy env is made in this process, in which one attempt is lost, and each reader
    is told its events. `trials` are those that the run plans.
    """
    conclude("The reader", reader_findings(make, deadline_s=deadline_s))


def reader_findings(
    make: Callable[[Sequence[Trial]], Reader], *, deadline_s: float = 60.0
) -> list[Finding]:
    """Every rule that the readers made by `make(trials)` break; none means that the engine can
    tell them of a run."""
    bench = _Bench(make, deadline_s)
    return first_broken(_BASICS, bench) or all_broken(_RULES, bench)


class _Bench:
    """Makes readers, and has the events that they are told."""

    def __init__(self, make: Callable[[Sequence[Trial]], Reader], deadline_s: float) -> None:
        self._make = make
        self.deadline_s = deadline_s
        self.events = _record()

    def fresh(self) -> Reader:
        started = self.events[0]
        assert isinstance(started, RunStarted)
        return self._make(started.trials)

    def tell(self, reader: Reader, events: Sequence[Event]) -> None:
        for event in events:
            try:
                reader.on(event)
            except Exception as exc:
                raise Broken(
                    f"At {type(event).__name__} it raised {type(exc).__name__}: {exc}."
                ) from exc


@functools.lru_cache(maxsize=1)
def _record() -> Sequence[Event]:
    """All events of a small run: three trials on one lane, one of which is tried twice."""
    from hocket.runs.evaluation import evaluate

    class Keeper:
        def on(self, event: Event) -> None:
            events.append(event)

        def close(self) -> None: ...

    events: list[Event] = []
    with tempfile.TemporaryDirectory() as folder:
        faults = {"raise_at": 3, "fault_seed": 1, "once_file": os.path.join(folder, "once")}
        evaluate(
            env="toy:count",
            policy="scripted",
            episodes=3,
            lanes=1,
            env_config={"length_min": 20, "length_max": 40, **faults},
            readers=[Keeper()],
        )
    return (*events, Noted(text="This is the end of a run that checks a reader."))


def _is_reader(bench: _Bench) -> None:
    reader = bench.fresh()
    for name in ("on", "close"):
        require(callable(getattr(reader, name, None)), f"It has no {name}().")
    reader.close()


def _follows(bench: _Bench) -> None:
    reader = bench.fresh()
    try:
        bench.tell(reader, bench.events)
    finally:
        reader.close()


def _spares_events(bench: _Bench) -> None:
    reader = bench.fresh()
    try:
        for event in bench.events:
            before = pickle.dumps(event)
            reader.on(event)
            same = before == pickle.dumps(event)
            require(same, f"{type(event).__name__} changed, which others read as well.")
    finally:
        reader.close()


def _catches_up(bench: _Bench) -> None:
    reader = bench.fresh()
    if not isinstance(reader, Durable):
        reader.close()
        return
    try:
        for event in bench.events:
            reader.on(event)
            answer = reader.behind()
            require(isinstance(answer, bool), f"It answered {answer!r}.")
        deadline = time.monotonic() + bench.deadline_s
        while reader.behind():
            require(time.monotonic() < deadline, f"It is behind after {bench.deadline_s} s.")
            time.sleep(_LOOK_S)
    finally:
        reader.close()


def _breaks_off(bench: _Bench) -> None:
    for count in (0, 1, len(bench.events) // 2):
        reader = bench.fresh()
        bench.tell(reader, bench.events[:count])
        reader.close()


def _closes(bench: _Bench) -> None:
    reader = bench.fresh()
    bench.tell(reader, bench.events)
    reader.close()
    reader.close()


_BASICS: Rules = (
    ("make(trials) gives a reader.", _is_reader),
    ("on() takes every event of a run, in order.", _follows),
)
_RULES: Rules = (
    ("on() leaves events as they were.", _spares_events),
    ("behind() answers True or False, and False once there was time.", _catches_up),
    ("close() may be called in the middle of a run.", _breaks_off),
    ("close() may be called twice.", _closes),
)
