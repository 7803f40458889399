"""One episode looked into: what was observed, answered, executed and rewarded, by step.

It is read from the run's tables `steps` and `chunks` and from what lies in the attempt's folder,
and told as plain data: `tracks.js` draws it.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hocket.core.data import Array, Trial
from hocket.core.specs import EnvSpec
from hocket.errors import HocketError
from hocket.records.answers import load_answers
from hocket.records.chunks import load_chunks
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import load_steps
from hocket.workers.sinks.encoder import exact_rate, read_pictures
from hocket.workers.sinks.pictures import encode_png
from hocket.workers.sinks.steps import ERROR_FILE, Layout, load_error_steps, read_layout
from hocket.workers.sinks.video import stride_of, videos_in

Look = dict[str, Any]
Made = tuple[Trial, int]
"""A trial, and the number of the attempt at it."""
_MOST_NUMBERS = 64
"""Numbers of a state that have a curve each."""
_MOST_VALUES = 60_000
"""Values of all of them together; of more, every second step is left out until they are fewer."""
_MOST_PICTURED = 6 << 20
"""Bytes of pictures that go with one episode."""
_TIMES = ("chunk", "requested", "batched", "inferred", "delivered", "batch_size", "policy_version")


@dataclass(frozen=True, slots=True)
class _Rows:
    """The steps of one attempt, the reset first."""

    columns: Mapping[str, Array]
    states: Sequence[Sequence[float] | None]
    prompt: str
    layout: Layout


def looks_into(folder: Path, made: Sequence[Made]) -> Iterator[tuple[Made, Look]]:
    """Yield what is known of each of these attempts, in their order; nothing of those that left no
    steps. The run may still go on."""
    root = RunFolder.at(folder)
    with LedgerView.open(root) as ledger:
        specs = ledger.specs()
    steps, times = _by_trial(load_steps, folder, made), _by_trial(load_chunks, folder, made)
    for trial, attempt in made:
        home, rows = root.attempt(trial, attempt), None
        if (table := steps.get((trial.id, attempt))) is not None:
            rows = _rows_of(table)
        elif (home / ERROR_FILE).is_file():
            rows = _rows_of_error(home / ERROR_FILE)
        chunks = times.get((trial.id, attempt))
        if rows is None or not len(rows.states):
            rows = None if chunks is None else _rows_of_chunks(chunks)
        if rows is not None:
            look = _look(rows, specs.get((trial.suite, trial.task)))
            look["chunks"] = _chunks(rows, chunks)
            look |= _answered(home) | _pictured(home, look)
            yield (trial, attempt), look


def _by_trial(load: Any, folder: Path, made: Sequence[Made]) -> dict[tuple[str, int], pa.Table]:
    """The rows of each attempt; none where they are damaged, which the page says elsewhere."""
    try:
        table = load(folder, [trial for trial, _ in made])
    except HocketError:
        return {}
    names, attempts = (table[name].to_pylist() for name in ("trial", "attempt"))
    found, begin = dict[tuple[str, int], pa.Table](), 0
    for name, rows in itertools.groupby(names):
        size = sum(1 for _ in rows)
        found[name, attempts[begin]] = table.slice(begin, size)
        begin += size
    return found


def _rows_of(table: pa.Table) -> _Rows:
    names = ("step", "chunk", "age", "reward")
    columns = {name: table[name].to_numpy() for name in names}
    columns["success"] = np.array([bool(one) for one in table["success"].to_pylist()])
    actions = table["action"].to_pylist()
    width = max((len(one) for one in actions if one), default=0)
    columns["action"] = np.array([one or [np.nan] * width for one in actions], float)
    layout = read_layout(table["layout"][0].as_py() or "{}")
    return _Rows(columns, table["state"].to_pylist(), table["prompt"][0].as_py() or "", layout)


def _rows_of_chunks(table: pa.Table) -> _Rows:
    """Where steps were not recorded: how many there were of each chunk."""
    numbers = np.repeat(table["chunk"].to_numpy(), table["steps"].to_numpy())
    count = len(numbers) + 1
    columns = {"step": np.arange(count), "chunk": np.r_[-1, numbers], "age": np.zeros(count, int)}
    columns |= {"reward": np.full(count, np.nan), "action": np.zeros((count, 0))}
    return _Rows({**columns, "success": np.zeros(count, bool)}, [None] * count, "", {})


def _rows_of_error(path: Path) -> _Rows | None:
    try:
        rows = load_error_steps(path)
        with np.load(path, allow_pickle=False) as file:
            said = json.loads(file["said"].tobytes())
    except (HocketError, ValueError, KeyError):
        return None
    columns = {name: rows[name] for name in ("step", "chunk", "age", "reward")}
    columns |= {"success": rows["success"] == 1, "action": rows["action"].astype(float)}
    told = zip(rows["state"], rows["has_state"], strict=True)
    states = [state.tolist() if is_there else None for state, is_there in told]
    return _Rows(columns, states, said["prompt"], read_layout(json.dumps(said["layout"])))


def _look(rows: _Rows, spec: EnvSpec | None) -> Look:
    columns, rate = rows.columns, None if spec is None else spec.task.control_rate
    bounds = None if spec is None else (spec.action.low.ravel(), spec.action.high.ravel())
    actions = columns["action"][1:].T
    return {
        "prompt": rows.prompt,
        "steps": len(columns["step"]) - 1,
        "rate": float(exact_rate(rate)),
        "stride": stride_of(rate),
        "rewards": _short(columns["reward"][1:]) if len(actions) else [],
        "success": (np.flatnonzero(columns["success"])).tolist()[:1],
        "actions": [_short(one) for one in actions],
        "ranges": _ranges(bounds, len(actions)),
        "states": _states(rows),
    }


def _ranges(bounds: tuple[Array, Array] | None, count: int) -> list[list[float] | None]:
    """The least and the most of each number of an action, as the env says; None where it says
    nothing that a curve could be drawn in."""
    if bounds is None or len(bounds[0]) != count:
        return [None] * count
    pairs = np.stack(bounds, axis=1)
    sound = np.isfinite(pairs).all(axis=1) & (np.abs(pairs) < 1e6).all(axis=1)
    return [pair if fits else None for pair, fits in zip(pairs.tolist(), sound, strict=True)]


def _states(rows: _Rows) -> Look:
    """What was observed, at the steps at which it was: a name and values for each number."""
    at = [i for i, state in enumerate(rows.states) if state]
    names = [
        f"{key.removeprefix('observation/')}[{i}]"
        for key, array in rows.layout.items()
        for i in range(array.size)
    ]
    shown = min(len(names), _MOST_NUMBERS)
    while len(at) * shown > _MOST_VALUES:
        at = at[::2]
    values = np.array([(rows.states[i] or ())[:shown] for i in at], float).reshape(len(at), shown)
    return {
        "names": names[:shown],
        "at": at,
        "values": [_short(one) for one in values.T],
        "more": len(names) - shown,
    }


def _chunks(rows: _Rows, times: pa.Table | None) -> list[dict[str, Any]]:
    """Each chunk of which steps were executed: the steps before and at its end, how many steps late
    its first was (`late`), and when the policy was at it, in seconds since it was asked."""
    number, age = rows.columns["chunk"][1:], rows.columns["age"][1:]
    if not len(number):
        return []
    begins = np.flatnonzero(np.r_[True, number[1:] != number[:-1]])
    ends = np.r_[begins[1:], len(number)]
    known: dict[int, dict[str, Any]] = {}
    if times is not None:
        known = {row["chunk"]: row for row in times.select(_TIMES).to_pylist()}
    found = []
    for first, end in zip(begins.tolist(), ends.tolist(), strict=True):
        one = {"chunk": int(number[first]), "first": first, "end": end, "late": int(age[first])}
        row = known.get(one["chunk"], {})
        if row.get("delivered") is not None and row["requested"] is not None:
            since = row["requested"]
            one |= {
                key: round(row[key] - since, 6)
                for key in ("batched", "inferred", "delivered")
                if row[key] is not None
            }
            one |= {"batch": row["batch_size"], "version": row["policy_version"]}
        found.append(one)
    return found


def _answered(home: Path) -> Look:
    """The whole answers of the policy, where they are kept."""
    try:
        answers = load_answers(home)
        if not answers:
            return {}
        actions = [[_short(step) for step in chunk] for chunk in answers["actions"]]
        return {"answers": {"asked": answers["asked"].tolist(), "actions": actions}}
    except (OSError, ValueError, KeyError):
        return {}


def _pictured(home: Path, look: Look) -> Look:
    """The pictures at each decision to the pixel, where every picture was kept, or made again from
    the states: `hocket video RUN --images`."""
    found: dict[str, dict[int, str]] = {}
    wanted, room = {max(0, one["first"] - one["late"]) for one in look["chunks"]}, _MOST_PICTURED
    for camera, path in videos_in(home, lossless=True).items():
        try:
            for step, frame in enumerate(read_pictures(path, look["steps"] + 1)):
                if step in wanted and room > 0:
                    png = base64.b64encode(encode_png(frame)).decode()
                    room -= len(png)
                    found.setdefault(camera, {})[step] = f"data:image/png;base64,{png}"
        except HocketError:
            continue
    return {"pictures": found} if found else {}


def _short(values: Array) -> list[float | None]:
    """Numbers with four digits; None for what is no finite number."""
    sound = np.isfinite(values)
    known = np.where(sound, values, 0.0).astype(float)
    size = 10.0 ** (3 - np.floor(np.log10(np.maximum(np.abs(known), 1e-12))))
    shown = (np.round(known * size) / size).tolist()
    return [one if fits else None for one, fits in zip(shown, sound.tolist(), strict=True)]
