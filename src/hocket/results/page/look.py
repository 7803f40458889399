"""One episode looked into: what was observed, answered, executed and rewarded, by step.

It is read from the run's tables `steps` and `chunks` and from what lies in the attempt's folder,
and told as plain data: `tracks.js` makes chunks of it and draws it.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hocket.core.data import Array, Episode, Outcome, Trial
from hocket.core.specs import EnvSpec
from hocket.errors import HocketError
from hocket.records.answers import load_answers
from hocket.records.chunks import load_chunks
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import StepFile, load_steps, table_of
from hocket.workers.sinks.encoder import exact_rate, read_pictures
from hocket.workers.sinks.pictures import encode_png
from hocket.workers.sinks.steps import ERROR_FILE, read_layout
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
_TIMES = ("chunk", "steps", "requested", "batched", "inferred", "delivered", "batch_size")


def looks_into(folder: Path, made: Sequence[Made]) -> Iterator[tuple[Made, Look]]:
    """Yield what is known of each of these attempts, in their order; nothing of those that left
    neither steps nor chunks. The run may still go on."""
    root = RunFolder.at(folder)
    with LedgerView.open(root) as ledger:
        specs = ledger.specs()
    steps, chunks = _by_trial(load_steps, folder, made), _by_trial(load_chunks, folder, made)
    for trial, attempt in made:
        home, look = root.attempt(trial, attempt), dict[str, Any]()
        rows = steps.get((trial.id, attempt), _left_by(home / ERROR_FILE, trial, attempt))
        if (times := chunks.get((trial.id, attempt))) is not None:
            look["times"] = {name: times[name].to_pylist() for name in _TIMES}
        if rows is not None and rows.num_rows:
            look |= _of_steps(rows) | _pictured(home, rows)
        if look:
            yield (trial, attempt), look | _of_env(specs.get(trial[:2])) | _answered(home)


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


def _left_by(path: Path, trial: Trial, attempt: int) -> pa.Table | None:
    """The steps that an attempt left which was lost."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = StepFile(file["rows"], file["said"])
        episode = Episode(trial, attempt, Outcome.ERROR, 0, 0.0)
        return table_of(found.rows.dtype, [(episode, found)])
    except (OSError, ValueError, KeyError):
        return None


def _of_env(spec: EnvSpec | None) -> Look:
    """How many steps a second there are, every which of them a film shows, and what an action may
    be."""
    rate = None if spec is None else spec.task.control_rate
    found: Look = {"rate": float(exact_rate(rate)), "stride": stride_of(rate)}
    if spec is not None:
        found["ranges"] = [_short(one.ravel()) for one in (spec.action.low, spec.action.high)]
    return found


def _of_steps(rows: pa.Table) -> Look:
    """Of each step its chunk, how old what that was of had become, the reward and the action; and
    what was observed, at the steps at which it was (step 0 is the reset)."""
    layout = read_layout(rows["layout"][0].as_py() or "{}")
    states = rows["state"].to_pylist()
    at = [step for step, state in enumerate(states) if state]
    shown = min(sum(array.size for array in layout.values()), _MOST_NUMBERS)
    while len(at) * shown > _MOST_VALUES:
        at = at[::2]
    values = np.array([states[step][:shown] for step in at], float).reshape(len(at), shown)
    executed = rows.slice(1)
    actions = np.array(executed["action"].to_pylist() or [[]], float)  # none, where none is left
    return {
        "prompt": rows["prompt"][0].as_py() or "",
        "chunk": executed["chunk"].to_pylist(),
        "age": executed["age"].to_pylist(),
        "rewards": _short(executed["reward"].to_numpy()),
        "actions": [_short(one) for one in actions.T],
        "layout": [(key, array.size) for key, array in layout.items()],
        "states": {"at": at, "values": [_short(one) for one in values.T]},
    }


def _answered(home: Path) -> Look:
    """The whole answers of the policy, where they are kept."""
    try:
        answers = load_answers(home)
        actions = [[_short(step) for step in chunk] for chunk in answers.get("actions", ())]
        return {"answers": {"asked": answers["asked"].tolist(), "actions": actions}}
    except (OSError, ValueError, KeyError):
        return {}


def _pictured(home: Path, rows: pa.Table) -> Look:
    """The pictures at each decision to the pixel, where every picture was kept, or made again from
    the states: `hocket video RUN --images`."""
    found, room = dict[str, dict[int, str]](), _MOST_PICTURED
    wanted = set((rows["step"].to_numpy() - 1 - rows["age"].to_numpy())[1:].tolist())
    for camera, path in videos_in(home, lossless=True).items():
        try:
            for step, frame in enumerate(read_pictures(path, rows.num_rows)):
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
