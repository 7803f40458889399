"""A run's timeline in Chrome's trace format, which ui.perfetto.dev and chrome://tracing open.

Every lane is a thread: its episodes, and in them what became of each chunk. The policy is a
process of its own: a slice for each batch, on as many threads as batches were under way at once,
and the size of batches as a counter. Chunks are streamed; of each batch 32 bytes are kept.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hocket.core.data import Array, Episode
from hocket.exports import new_file
from hocket.records.parquet import read_table
from hocket.results.timing import BATCH_COLUMNS, BatchRows, concurrent_slots, leg_spans
from hocket.runs.demonstrations.chosen import ChosenRun, ExportConfig, Watcher

_COLUMNS = (
    "trial",
    "leg",
    "chunk",
    "lane",
    "requested",
    "batched",
    "inferred",
    "executed",
    "batch",
    "batch_size",
    "policy_version",
    "source",
    "steps",
    "busy_s",
    "observe_s",
)
_LANES, _POLICY = 1, 2
_GAP_S = 1.0
"""The time between the legs of a run that was resumed."""

Event = dict[str, Any]
Row = Mapping[str, Any]


def write(run: ChosenRun, out: Path, config: ExportConfig, watcher: Watcher) -> None:
    """Write the file; a name that ends in `.gz` is compressed."""
    del config
    watcher.stage("writing", len(run.episodes))
    with new_file(out) as draft, _open(draft, is_zipped=out.suffix == ".gz") as file:
        lanes, before = _Lanes(), '{"traceEvents":[\n'
        for event in _events(run, lanes, watcher):
            file.write(before + json.dumps(event, separators=(",", ":"), allow_nan=False))
            before = ",\n"
        about = json.dumps({"run": run.recorded.name, "policy": run.config.get("policy")})
        file.write(f'\n],"displayTimeUnit":"ms","otherData":{about}}}\n')
    if not lanes.seen:
        watcher.note("No chunk of these episodes was recorded: the timeline is empty.")


def _events(run: ChosenRun, lanes: _Lanes, watcher: Watcher) -> Iterator[Event]:
    offsets, batches = _offsets(run), BatchRows()
    chosen = {episode.trial.id: episode for episode in run.episodes}
    for episode, rows in _by_episode(run, chosen):
        offset = offsets.get(rows[0]["leg"], 0.0)
        yield from lanes.events(episode, rows, offset, run.label(episode))
        told = [[row[name] for name in BATCH_COLUMNS] for row in rows if row["batch"] is not None]
        batches.add(np.array(told, np.float64).reshape(-1, 5) + np.array([0, 0, 0, offset, offset]))
        watcher.advance("writing")
    yield from lanes.names()
    yield from _batch_events(batches.distinct())


@dataclass(slots=True)
class _Lanes:
    """What lanes did as slices; an episode's slice holds those of its chunks."""

    seen: set[int] = field(default_factory=set)

    def events(
        self, episode: Episode, rows: list[Row], offset: float, label: str
    ) -> Iterator[Event]:
        lane = rows[0]["lane"]
        self.seen.add(lane)
        times = [row[name] for row in rows for name in ("requested", "inferred", "executed")]
        known = [time for time in times if time is not None]
        if not known:
            return
        trial = episode.trial
        yield _slice(
            f"{trial.task} seed {trial.seed}: {episode.verdict}",
            (_LANES, lane + 1),
            (min(known) + offset, max(known) + offset),
            "episode",
            {
                "trial": trial.id,
                "outcome": episode.outcome.value,
                "steps": episode.steps,
                "return": episode.total_reward if math.isfinite(episode.total_reward) else None,
                "attempt": episode.attempt,
                **({"label": label} if label else {}),
            },
        )
        end = -math.inf
        for row in rows:
            for name, begin, until in _parts(row):
                # Slices of one thread must not overlap, and a chunk may be asked for early.
                begin = max(begin, end)
                if until > begin:
                    args = {"chunk": row["chunk"], "batch": row["batch"], "steps": row["steps"]}
                    span = (begin + offset, until + offset)
                    yield _slice(name, (_LANES, lane + 1), span, "lane", args)
                    end = until

    def names(self) -> Iterator[Event]:
        yield _named("process_name", _LANES, 0, "lanes")
        for lane in sorted(self.seen):
            yield _named("thread_name", _LANES, lane + 1, f"lane {lane}")
            order = {"sort_index": lane}
            tid = lane + 1
            yield {"ph": "M", "name": "thread_sort_index", "pid": _LANES, "tid": tid, "args": order}


def _parts(row: Row) -> Iterator[tuple[str, float, float]]:
    """The name, begin and end of each part of a chunk's life in a lane that is known."""
    requested, batched, inferred = row["requested"], row["batched"], row["inferred"]
    if requested is not None and inferred is not None:
        yield "waiting", requested, batched
        yield "inferring", batched, inferred
    executed = row["executed"]
    if executed is None:
        return
    begin = executed - row["busy_s"] if inferred is None else inferred
    work = max(begin, executed - row["busy_s"])
    seen = max(work, executed - row["observe_s"])
    yield "handing over", begin, work
    yield "stepping", work, seen
    yield "observing", seen, executed


def _batch_events(rows: Array) -> Iterator[Event]:
    """The policy's slices, from rows as `BatchRows` has them."""
    rows = rows[np.argsort(rows[:, 3], kind="stable")]
    if not len(rows):
        return
    yield _named("process_name", _POLICY, 0, "policy")
    slots, known = concurrent_slots(rows[:, 3].tolist(), rows[:, 4].tolist()), 0
    for slot, (_, batch, size, begin, end) in zip(slots, rows.tolist(), strict=True):
        if slot == known:
            known += 1
            yield _named("thread_name", _POLICY, slot + 1, f"inference {slot}")
        args, thread = {"batch": int(batch), "rows": int(size)}, (_POLICY, slot + 1)
        yield _slice(f"batch of {int(size)}", thread, (begin, end), "policy", args)
        counted = {"pid": _POLICY, "ts": _us(begin), "args": {"rows": int(size)}}
        yield {"ph": "C", "name": "batch size", **counted}


def _by_episode(
    run: ChosenRun, chosen: Mapping[str, Episode]
) -> Iterator[tuple[Episode, list[Row]]]:
    """The chunks of each chosen episode, which lie together in the table."""
    name, rows = "", list[Row]()
    for batch in read_table(run.folder, "chunks", _COLUMNS):
        for row in batch.to_pylist():
            if row["trial"] != name:
                if rows:
                    yield chosen[name], rows
                name, rows = row["trial"], []
            if row["trial"] in chosen:
                rows.append(row)
    if rows:
        yield chosen[name], rows


def _offsets(run: ChosenRun) -> dict[int, float]:
    """The seconds to add to the times of each leg, so that legs follow each other."""
    offsets, now = {}, 0.0
    for leg, (begin, end) in leg_spans(run.folder).items():
        offsets[leg] = now - begin
        now += end - begin + _GAP_S
    return offsets


def _slice(
    name: str,
    thread: tuple[int, int],
    span: tuple[float, float],
    category: str,
    args: Mapping[str, Any],
) -> Event:
    begin, end = _us(span[0]), _us(span[1])
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": thread[0],
        "tid": thread[1],
        "ts": begin,
        "dur": round(end - begin, 3),
        "args": args,
    }


def _named(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _open(path: Path, *, is_zipped: bool) -> AbstractContextManager[TextIO]:
    if is_zipped:
        return gzip.open(path, "wt", encoding="utf-8", compresslevel=5)
    return open(path, "w", encoding="utf-8")
