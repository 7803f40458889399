"""Where a run's time went, read from its table of chunks with a few thousand in memory at a time.

A chunk's life: its observation has come (`requested`), its batch leaves for the policy
(`batched`), comes back (`inferred`), and the lane has run it (`executed`, of which `busy_s` was
work in the worker and `observe_s` of that observing). Between its episodes a lane resets.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hocket.core.data import Array
from hocket.records.folder import FolderLike
from hocket.records.parquet import read_table

SHARES = ("stepping", "observing", "waiting", "inferring", "handing over", "resetting", "done")
"""What a lane may be doing; `done` is when no trial is left for it."""
BATCH_COLUMNS = ("leg", "batch", "batch_size", "batched", "inferred")
"""What `BatchRows` wants of each chunk."""

_COLUMNS = (*BATCH_COLUMNS, "lane", "requested", "executed", "busy_s", "observe_s", "steps")
_FINEST_S = 0.02
_MOST_BINS = 1 << 16
_WINDOW_CHUNKS = 1200
_WINDOW_CHUNKS_PER_LANE = 64
_WINDOW_LANES = 24


@dataclass(slots=True)
class StepsOverTime:
    """Steps over time. Bins get longer with the run, so that memory does not grow."""

    bin_s: float = _FINEST_S
    steps: Array = field(default_factory=lambda: np.zeros(1))

    def add(self, times: Array, steps: Array) -> None:
        while times.size and times.max() / self.bin_s >= _MOST_BINS:
            self.bin_s *= 2
            self.steps = np.pad(self.steps, (0, len(self.steps) % 2)).reshape(-1, 2).sum(axis=1)
        counted = np.bincount((np.maximum(times, 0) / self.bin_s).astype(int), weights=steps)
        size = max(len(counted), len(self.steps))
        self.steps = np.pad(self.steps, (0, size - len(self.steps)))
        self.steps[: len(counted)] += counted

    def per_second(self, bins: int) -> tuple[float, Array]:
        """A bin's width in seconds, and the steps per second in each of at most `bins` bins."""
        merged = max(1, -(-len(self.steps) // bins))
        padded = np.pad(self.steps, (0, -len(self.steps) % merged))
        width = merged * self.bin_s
        return width, padded.reshape(-1, merged).sum(axis=1) / width


class BatchRows:
    """Keeps each batch once, though its chunks lie in several episodes and segments. Rows are
    float64 `[n, 5]`, by BATCH_COLUMNS."""

    def __init__(self) -> None:
        self._parts: list[Array] = []

    def add(self, rows: Array) -> None:
        self._parts.append(_distinct(rows))
        if len(self._parts) >= 1024:
            self._parts = [self.distinct()]

    def distinct(self) -> Array:
        """A row for each batch, by leg and number."""
        return _distinct(np.concatenate([np.zeros((0, 5)), *self._parts]))


def _distinct(rows: Array) -> Array:
    keys = rows[:, 0].astype(np.int64) << 40 | rows[:, 1].astype(np.int64)
    return rows[np.unique(keys, return_index=True)[1]]


@dataclass(slots=True)
class _LaneTime:
    """How one lane spent its time in one leg, in seconds by the first five of SHARES."""

    spent: Array = field(default_factory=lambda: np.zeros(5))
    last: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneWindow:
    """A part of one leg, chunk by chunk; times are those of the table."""

    begin: float
    end: float
    lanes: int
    """How many lanes are shown, from the first on."""
    chunks: Mapping[str, Array]
    """Columns, in the order in which the chunks were asked for."""
    whole: bool
    """True if this is all of the leg, with all its lanes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunTiming:
    """What became of the lanes' time and the policy's."""

    wall_s: float
    lanes: int
    chunks: int
    batches: int
    steps: int
    lane_s: dict[str, float]
    """The seconds of all lanes together, by SHARES."""
    by_lane: Mapping[int, Array]
    """The seconds of each lane in the last leg, by the first five of SHARES."""
    policy_s: float
    """The seconds of inferring; batches inferred at once count each."""
    infer_s: Array
    """The seconds that each batch took to infer."""
    batch_sizes: Array
    pace: StepsOverTime
    window: LaneWindow | None

    @property
    def shares(self) -> dict[str, float]:
        """`lane_s` as parts of 1."""
        total = sum(self.lane_s.values()) or 1.0
        return {name: seconds / total for name, seconds in self.lane_s.items()}


def concurrent_slots(begins: Iterable[float], ends: Iterable[float]) -> Iterator[int]:
    """For each span, ordered by their begins, the least number that no span under way has."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for begin, end in zip(begins, ends, strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, slot))
        yield slot


def load_timing(folder: FolderLike) -> RunTiming | None:
    """The timing of a run folder; None where no chunk is recorded."""
    spans = leg_spans(folder)
    if not spans:
        return None
    offsets = dict(zip(spans, np.cumsum([0.0, *(b - a for a, b in spans.values())]), strict=False))
    lanes: dict[tuple[int, int], _LaneTime] = {}
    pace, batches, chunks, steps = StepsOverTime(), BatchRows(), 0, 0
    for part in _parts(folder):
        done = _where(np.isfinite(part["executed"]), part)
        chunks += len(done["leg"])
        steps += int(done["steps"].sum())
        batches.add(np.column_stack([part[name] for name in BATCH_COLUMNS]))
        for leg in np.unique(done["leg"]):
            rows = _where(done["leg"] == leg, done)
            pace.add(rows["executed"] - spans[leg][0] + offsets[leg], rows["steps"])
            _add_lanes(lanes, int(leg), rows)
    wall_s = sum(end - begin for begin, end in spans.values())
    _, _, sizes, left, came = batches.distinct().T
    infer_s = came - left
    return RunTiming(
        wall_s=wall_s,
        lanes=max(lane for _, lane in lanes) + 1 if lanes else 0,
        chunks=chunks,
        batches=len(infer_s),
        steps=steps,
        lane_s=_lane_seconds(lanes, spans),
        by_lane={lane: time.spent for (leg, lane), time in lanes.items() if leg == max(spans)},
        policy_s=float(infer_s.sum()),
        infer_s=infer_s,
        batch_sizes=sizes,
        pace=pace,
        window=_window(folder, spans, lanes, chunks, wall_s),
    )


def _parts(folder: FolderLike, names: Sequence[str] = _COLUMNS) -> Iterator[dict[str, Array]]:
    """Yield columns of some thousand chunks at a time, delivered ones only; NaN where one was not
    executed."""
    for batch in read_table(folder, "chunks", names):
        columns = {name: batch[name].to_numpy(zero_copy_only=False) for name in names}
        yield _where(np.isfinite(columns["requested"]), columns)


def _where(rows: Array, columns: Mapping[str, Array]) -> dict[str, Array]:
    return {name: column[rows] for name, column in columns.items()}


def leg_spans(folder: FolderLike) -> dict[int, tuple[float, float]]:
    """The first request and the last execution of each leg, legs in order."""
    spans: dict[int, tuple[float, float]] = {}
    for part in _parts(folder, ("leg", "requested", "inferred", "executed")):
        for leg in np.unique(part["leg"]):
            mine = part["leg"] == leg
            ends = np.fmax(part["executed"][mine], part["inferred"][mine])
            first, last = float(part["requested"][mine].min()), float(np.nanmax(ends))
            seen = spans.get(int(leg), (first, last))
            spans[int(leg)] = (min(first, seen[0]), max(last, seen[1]))
    return dict(sorted(spans.items()))


def _add_lanes(lanes: dict[tuple[int, int], _LaneTime], leg: int, rows: dict[str, Array]) -> None:
    after = rows["executed"] - rows["inferred"]
    busy = np.minimum(rows["busy_s"], after)
    spent = np.stack(
        [
            busy - np.minimum(rows["observe_s"], busy),
            np.minimum(rows["observe_s"], busy),
            rows["batched"] - rows["requested"],
            rows["inferred"] - rows["batched"],
            after - busy,
        ]
    )
    sums = [np.bincount(rows["lane"], weights=seconds) for seconds in spent]
    last = np.zeros(len(sums[0]))
    np.maximum.at(last, rows["lane"], rows["executed"])
    for lane in np.unique(rows["lane"]):
        found = lanes.setdefault((leg, int(lane)), _LaneTime())
        found.spent += [each[lane] for each in sums]
        found.last = max(found.last, float(last[lane]))


def _lane_seconds(
    lanes: dict[tuple[int, int], _LaneTime], spans: dict[int, tuple[float, float]]
) -> dict[str, float]:
    total = np.zeros(len(SHARES))
    for (leg, _), lane in lanes.items():
        begin, end = spans[leg]
        total[:5] += lane.spent
        total[5] += max(0.0, lane.last - begin - float(lane.spent.sum()))
        total[6] += end - lane.last
    return dict(zip(SHARES, total.tolist(), strict=True))


def _window(
    folder: FolderLike,
    spans: dict[int, tuple[float, float]],
    lanes: dict[tuple[int, int], _LaneTime],
    chunks: int,
    wall_s: float,
) -> LaneWindow | None:
    """A stretch from the middle of the longest leg, short enough to draw every chunk."""
    if not chunks or wall_s <= 0:
        return None
    leg = max(spans, key=lambda each: spans[each][1] - spans[each][0])
    begin, end = spans[leg]
    count = max(lane for at, lane in lanes if at == leg) + 1
    shown = min(count, _WINDOW_LANES)
    wanted = min(_WINDOW_CHUNKS, _WINDOW_CHUNKS_PER_LANE * shown)
    length = wanted * wall_s / chunks * count / shown
    whole = length >= end - begin
    if not whole:
        middle = (begin + end) / 2
        begin, end = middle - length / 2, middle + length / 2
    parts = [
        _where(
            (part["leg"] == leg)
            & (part["lane"] < shown)
            & (part["requested"] < end)
            & (part["executed"] > begin),
            part,
        )
        for part in _parts(folder)
    ]
    found = {name: np.concatenate([part[name] for part in parts]) for name in _COLUMNS}
    first = np.argsort(found["requested"], kind="stable")[: 4 * _WINDOW_CHUNKS]
    return LaneWindow(
        begin=begin,
        end=end,
        lanes=shown,
        chunks=_where(first, found),
        whole=whole and shown == count and len(spans) == 1,
    )
