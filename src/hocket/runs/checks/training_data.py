"""Compares what a policy is given with what it was trained on, a LeRobotDataset.

The env's first observation is compared with the first ones of episodes: is it the same camera, the
right way up, are numbers where they were? The policy's answers about frames of the data with what
was done there: what differs is the policy's fault or its processors', whatever the env does. What
recorded actions do in the env with what they did: a turned sign, another order, scale or rate shows
there, whatever the policy does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hocket.adapters.policies.lerobot.folder import ALIASES
from hocket.core.contracts.policy import Policy, Sessions
from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Actions, Array, Batch, Row, Trial, noise_seed
from hocket.core.specs import EnvSpec
from hocket.errors import ConfigError
from hocket.runs.demonstrations.lerobot_dataset import INFO, DatasetFiles, matrix, unreadable
from hocket.runs.demonstrations.lerobot_names import picture_key
from hocket.runs.probe import RATE_TOLERANCE, wait_for
from hocket.workers import notices
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.sinks.pictures import is_picture
from hocket.workers.sinks.video import camera_name

_EPISODES, _FRAMES, _HORIZON = 12, 2, 8
"""Episodes that are looked at, frames of each that the policy is asked about, and actions of each
answer that are compared."""
_REPLAYED, _STEPS, _FIRST = 2, 100, 10
"""Episodes that are executed in the env, most steps of each, and how many are surely before the
hand touches anything."""
_WAIT_S = 300.0
_SIDE = 24
"""Pictures are compared by that many points a side."""
_NOISE = 6.0
"""Levels, of 255, by which pictures of one scene differ for their compression alone."""
_VIEWS: Mapping[str, Callable[[Array], Array]] = {
    "": lambda p: p,
    "upside down": lambda p: p[::-1],
    "mirrored": lambda p: p[:, ::-1],
    "turned by half a turn": lambda p: p[::-1, ::-1],
    "turned to the left": np.rot90,
    "turned to the right": lambda p: np.rot90(p, -1),
    "with red and blue exchanged": lambda p: p[..., ::-1],
}
_UNITS = (1e3, 1e-3, 100.0, 0.01, 10.0, 0.1, 180 / np.pi, np.pi / 180, 255.0, 1 / 255)
_ASKED = "Asked about frames of the data, the policy"


class Mistake(NamedTuple):
    """Something that is otherwise than in the data."""

    rank: int
    """How likely it is why a policy fails; the least first."""
    text: str
    pictures: Mapping[str, Array] = {}
    """What is given, and what was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Given:
    """What the check found of env and policy."""

    inputs: Mapping[str, Array]
    """The policy's first row; of a history what is seen now."""
    prompt: str
    spec: EnvSpec
    trial: Trial
    policy: Policy
    keys: Mapping[str, str]
    """The env's keys by the names that the policy was trained with, where they were given."""


def opened(root: Path) -> DatasetFiles:
    """The dataset of a folder; whatever is none is refused."""
    if not (root / INFO).is_file():
        raise ConfigError(f"{str(root)!r} is no LeRobot dataset: it has no {INFO}.")
    try:
        return DatasetFiles(root)
    except (OSError, ValueError, KeyError, pa.ArrowException) as exc:
        raise unreadable(root, exc) from exc


def compare(
    dataset: DatasetFiles, given: Given, runtime: Runtime, worker: WorkerSpec
) -> list[Mistake]:
    """All that differs, the likeliest mistake first."""
    try:
        data = _Sample(dataset, given)
    except (OSError, ValueError, KeyError, pa.ArrowException) as exc:
        raise unreadable(dataset.root, exc) from exc
    found = [*_pictures(data, given), *_numbers(data, given)]
    if given.prompt not in data.prompts:
        known = ", ".join(map(repr, data.prompts[:5]))
        found.append(Mistake(6, f"The prompt is {given.prompt!r}; the data have {known}."))
    recorded, taken = data.actions[0].shape[1], given.spec.action.size
    if recorded != taken:
        found.append(Mistake(2, f"Actions of the data have {recorded} numbers, the env's {taken}."))
    else:
        found += _answers(data, given)
    same = [key for key in data.numbers if data.numbers[key][0].shape[1] == given.inputs[key].size]
    if recorded == taken and len(same) == len(data.numbers) > 0:
        blind = replace(worker, reads=tuple(same), cameras=(), history=1)
        with Fleet(runtime, blind, FleetConfig(lanes=1, start_timeout_s=_WAIT_S)) as fleet:
            fleet.start()
            wait_for(fleet, notices.LanesUp, _WAIT_S)
            found += _effects(data, given, fleet)
    return sorted(found, key=lambda mistake: mistake.rank)


class _Sample:
    """Some episodes of a dataset, by the env's keys: those of the same prompt where there are any,
    evenly spread."""

    def __init__(self, dataset: DatasetFiles, given: Given) -> None:
        self._given = given
        self.dataset = dataset
        features, everyone = self.dataset.features, self.dataset.episodes
        self.prompts = sorted({prompt for one in everyone for prompt in one["tasks"]})
        chosen = [one for one in everyone if given.prompt in one["tasks"]] or everyone
        self.episodes = chosen[:: -(-len(chosen) // _EPISODES)]
        self.rows = [self.dataset.rows(one) for one in self.episodes]
        self.actions = [matrix(rows["action"]) for rows in self.rows]
        self.cameras = [key for key in features if features[key]["dtype"] in ("video", "image")]
        self.numbers = {key: rows for key in given.inputs if (rows := self._numbers(key))}
        """The rows `[n, size]` of each episode, by the env's keys; those that the data have."""

    def feature(self, key: str) -> str:
        """The feature that the policy reads as this key of the env; '' where the data have none."""
        name = camera_name(key)
        pairs = (*self._given.keys.items(), *ALIASES.items())
        names = [theirs for theirs, ours in pairs if ours == key]
        names += [picture_key(name), f"observation.{name}"]
        return next((one for one in names if one in self.dataset.features), "")

    def picture(self, episode: int, frame: int, feature: str) -> Array:
        rows = self.rows[episode].slice(frame, 1)
        return next(self.dataset.pictures(self.episodes[episode], rows, frame, feature))

    def _numbers(self, key: str) -> list[Array]:
        feature, shape = self.feature(key), self._given.inputs[key].shape
        if feature:
            rows = [] if feature in self.cameras else self.rows
            return [matrix(some[feature]) for some in rows]
        found = [self.dataset.array(rows, key, shape) for rows in self.rows]
        return [rows for rows in found if rows is not None]


def _pictures(data: _Sample, given: Given) -> Iterator[Mistake]:
    count = range(len(data.episodes))
    firsts = {name: [data.picture(i, 0, name) for i in count] for name in data.cameras}
    points = {name: [_points(one) for one in some] for name, some in firsts.items()}
    for key, picture in given.inputs.items():
        if not is_picture(picture):
            continue
        if (feature := data.feature(key)) not in points:
            has = ", ".join(points) or "none"
            yield Mistake(1, f"The data have no camera that the policy reads as {key!r}: {has}.")
            continue
        both = {f"{key} given": picture, f"{feature} trained": firsts[feature][0]}
        wanted = (given.policy.spec.inputs or {}).get(key)
        is_dark = picture.max() <= 1
        if is_dark and (wanted is None or np.dtype(wanted.dtype or "u1").kind != "f"):
            numbers = f"{picture.dtype} from {picture.min():g} to {picture.max():g}"
            yield Mistake(0, f"{key!r} is {numbers}; the data's go from 0 to 255.", both)
        if picture.shape != firsts[feature][0].shape:
            shapes = f"{picture.shape}, and {feature!r} in the data {firsts[feature][0].shape}"
            yield Mistake(5, f"{key!r} is {shapes}.", both)
        mine = _points(picture) * (255 if is_dark else 1)
        apart = {
            (name, view): min(np.abs(turn(mine) - one).mean() for one in some)
            for name, some in points.items()
            for view, turn in _VIEWS.items()
        }
        (name, view), least = min(apart.items(), key=lambda item: item[1])
        own = apart[feature, ""]
        # How far the first picture of an episode may be from the nearest of another.
        usual = _NOISE + max(
            min(
                (np.abs(one - other).mean() for other in points[feature] if other is not one),
                default=0,
            )
            for one in points[feature]
        )
        if own > usual and least < 0.6 * own:
            like = f"{name!r} {view}".rstrip()
            yield Mistake(
                0, f"{key!r} is not as {feature!r} was, but like the data's {like}.", both
            )
        elif own > 2 * usual:
            levels = f"{own:.0f} of 255 levels away, and these {usual:.0f} from each other"
            yield Mistake(4, f"{key!r} is like no first picture of {feature!r}: {levels}.", both)


def _points(picture: Array) -> Array:
    if picture.shape[-1] > 4:
        picture = np.moveaxis(picture, 0, -1)
    rows, columns = (np.linspace(0, size - 1, _SIDE).astype(int) for size in picture.shape[:2])
    points: Array = picture[rows][:, columns, :3].astype(np.float64)
    return points


def _numbers(data: _Sample, given: Given) -> Iterator[Mistake]:
    for key, value in given.inputs.items():
        if is_picture(value):
            continue
        if key not in data.numbers:
            yield Mistake(3, f"The policy reads {key!r}; the data have no such numbers.")
            continue
        rows, numbers = np.concatenate(data.numbers[key]), value.ravel()
        if rows.shape[1] != len(numbers):
            yield Mistake(2, f"{key!r} has {len(numbers)} numbers; in the data {rows.shape[1]}.")
            continue
        low, high, slack = _bounds(rows)
        far = np.maximum(low - numbers, numbers - high) / slack
        # Further from what was seen than that is wide, or 0 where that never was.
        strange = np.flatnonzero((far > 3) | ((numbers == 0) & (far > 0.5)))
        if len(strange):
            i = int(strange[np.argmax(far[strange])])
            text = (
                f"Number {', '.join(map(str, strange[:8]))} of {key!r} never was like that: {i} is"
            )
            text += f" {numbers[i]:.4g}, and was {low[i]:.4g} to {high[i]:.4g} in the data."
            for unit in _UNITS:
                scaled = numbers[strange] * unit
                if (np.abs(scaled - (low + high)[strange] / 2) < slack[strange]).all():
                    text += f" Times {unit:.4g} it would fit: is it the unit?"
                    break
            yield Mistake(3, text)


def _bounds(rows: Array) -> tuple[Array, Array, Array]:
    """The least and the greatest of each column, and how wide that is, a little at least."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    return low, high, high - low + 0.01 * np.maximum(np.abs(low), np.abs(high)) + 1e-6


def _answers(data: _Sample, given: Given) -> Iterator[Mistake]:
    """Ask the policy about frames of the data, and compare with what was done then."""
    if not all(data.feature(key) or key in data.numbers for key in given.inputs):
        return
    pairs = []
    for number, actions in enumerate(data.actions):
        for frame in np.linspace(0, max(0, len(actions) - _HORIZON), _FRAMES).astype(int).tolist():
            try:
                answer = _ask(data, given, number, frame)[:_HORIZON]
            except Exception as error:  # noqa: BLE001 - it may raise what it likes
                yield Mistake(2, f"{_ASKED} raises {error!r}")
                return
            done = actions[frame : frame + len(answer)]
            pairs.append((answer[: len(done)].astype(np.float64), done))
    says, does = (np.concatenate(rows) for rows in zip(*pairs, strict=True))
    alike, varied = _correlation(says, does), does.std(axis=0) > 0
    if varied.any() and np.abs(np.diag(alike))[varied].mean() < 0.2:
        yield Mistake(2, f"{_ASKED} answers nothing like what was done. Was it trained on them?")
        return
    for i in np.flatnonzero(np.diag(alike) < -0.5).tolist():
        yield Mistake(1, f"{_ASKED} answers action {i} with the other sign{_gripper(i, alike)}.")
    low, high, slack = _bounds(np.concatenate(data.actions))
    outside = ((says < low - slack / 2) | (says > high + slack / 2)).mean(axis=0)
    for i in np.flatnonzero(outside > 0.2)[:1].tolist():
        text = f"{_ASKED} answers {says[:, i].min():.3g} to {says[:, i].max():.3g} as action {i};"
        yield Mistake(2, f"{text} {low[i]:.3g} to {high[i]:.3g} was done. Is it unnormalised?")
    ratio = _ratio(says, does, np.diag(alike) > 0.8)
    if not 0.5 < ratio < 2:
        yield Mistake(2, f"{_ASKED} answers actions {ratio:.2g} times as large as what was done.")


def _ask(data: _Sample, given: Given, number: int, frame: int) -> Array:
    """The chunk `[T, A]` that the policy answers to a frame of the data."""
    history, arrays = given.policy.spec.history, {}
    for key, like in given.inputs.items():
        steps = [max(0, frame - back) for back in reversed(range(history))]
        if key in data.numbers:
            seen = [data.numbers[key][number][step].reshape(like.shape) for step in steps]
        else:
            scale = 255 if like.dtype.kind == "f" and like.max() <= 1 else 1
            seen = [data.picture(number, step, data.feature(key)) / scale for step in steps]
        arrays[key] = np.stack(seen).astype(like.dtype)[None if history > 1 else slice(None)]
    row = Row(
        trial=given.trial,
        attempt=0,
        chunk=frame,
        noise_seed=noise_seed(given.trial, frame),
        prompt=data.episodes[number]["tasks"][0],
        session=f"frame {frame} of episode {number}",
        env=given.spec,
    )
    if isinstance(given.policy, Sessions):
        given.policy.begin_session(row)
    answer: Any = given.policy.infer(Batch(arrays=arrays, rows=(row,)))
    if isinstance(given.policy, Sessions):
        given.policy.end_session(row.session)
    chunk: Array = np.asarray(answer.values if isinstance(answer, Actions) else answer)[0]
    return chunk


def _effects(data: _Sample, given: Given, fleet: Fleet) -> Iterator[Mistake]:
    """Compare what recorded actions do in the env with what they did, and what each number of an
    action does alone, before the hand can touch anything."""
    whole = [np.concatenate(parts, axis=1) for parts in zip(*data.numbers.values(), strict=True)]
    names = [f"{key}[{i}]" for key in data.numbers for i in range(given.inputs[key].size)]
    acts = np.concatenate(data.actions)
    *_, width = _bounds(np.concatenate(whole))
    up, down = (
        [_run(fleet, data, given.trial, [push] * _FIRST) for push in pushes]
        for most in [np.diag(np.abs(acts).max(axis=0))]
        for pushes in (most, -most)
    )
    pulled = np.stack([a[-1] - b[-1] for a, b in zip(up, down, strict=True)], axis=1)
    pulled /= width[:, None]
    driven = np.abs(pulled).max(axis=1) > 0.03
    still = np.ptp(np.concatenate(whole), axis=0) == 0
    moves = np.concatenate([np.diff(rows, axis=0) for rows in whole])
    did = _correlation(moves, np.concatenate([rows[:-1] for rows in data.actions]))
    runs = [_run(fleet, data, given.trial, some[:_STEPS]) for some in data.actions[:_REPLAYED]]
    then = [rows[: len(run)] for rows, run in zip(whole, runs, strict=False)]
    now = [run[: len(rows)] for rows, run in zip(then, runs, strict=True)]
    were, are = (np.concatenate([np.diff(one, axis=0) for one in some]) for some in (then, now))
    alike = _correlation(were, are)
    # A correlation that is hardly met by chance.
    chance = max(0.15, 4 / len(moves) ** 0.5)

    pulls = np.abs(pulled).argmax(axis=0).tolist()
    varied = [j for j in np.flatnonzero(acts.std(axis=0)).tolist() if driven[pulls[j]]]
    for j in varied:
        i, k = pulls[j], int(np.argmax(np.abs(did[pulls[j]])))
        if still[i] or abs(did[i, k]) > 0.6 > 0.5 > abs(did[i, j]):
            text = f"Action {j} moves {names[i]}, and {'none' if still[i] else k} did in the data:"
            yield Mistake(2, f"{text} are states or actions in another order?")
            return
    for j in varied:
        if abs(did[pulls[j], j]) > chance and did[pulls[j], j] * pulled[pulls[j], j] < 0:
            text = f"Action {j} moves {names[pulls[j]]} the other way than in the data: its sign is"
            yield Mistake(1, f"{text} turned round{_gripper(j, pulled.T)}.")
    moved, moving = (
        np.max([np.ptp(one[: _FIRST + 1], axis=0) for one in some], axis=0) for some in (then, now)
    )
    least, most = np.minimum(moved, moving), np.maximum(moved, moving)
    odd = driven & (np.diag(alike) < 0.4) & (most > 5 * least + 0.1 * width)
    for i in np.flatnonzero(odd)[:1].tolist():
        text = f"The first actions of an episode move {names[i]} by {moving[i]:.3g}; then by"
        yield Mistake(1, f"{text} {moved[i]:.3g}: is a sign turned round, often the gripper's?")
    ratio = _ratio(are, were, driven & (np.diag(alike) > 0.7))
    ours, theirs = given.spec.task.control_rate or 0.0, float(data.dataset.info["fps"])
    rates = f"The data have {theirs:g} frames a second, the env runs at {ours:g}."
    if not 0.67 < ratio < 1.5:
        yield Mistake(2, f"Recorded actions move the env {ratio:.2g} times as far as then. {rates}")
    elif ours and abs(ours - theirs) > RATE_TOLERANCE * theirs:
        yield Mistake(6, rates)


def _run(fleet: Fleet, data: _Sample, trial: Trial, actions: Any) -> Array:
    """The numbers `[n, D]` that the env shows before each action, and after the last."""
    fleet.begin([0], [0], [trial], [None], final_observation=True, record=[{}])
    wait_for(fleet, notices.LanesBegun, _WAIT_S)
    seen: list[Array] = []
    for step in range(len(actions) + 1):
        arrays = fleet.arrays(0)
        seen.append(np.concatenate([np.array(arrays[key], float).ravel() for key in data.numbers]))
        if step == len(actions):
            break
        fleet.execute([0], [0], [step], [actions[step][None]])
        if wait_for(fleet, notices.LanesExecuted, _WAIT_S).ends[0]:
            break
    return np.array(seen)


def _correlation(rows: Array, others: Array) -> Array:
    """Of each column with each; 0 where one is constant."""
    rows, others = rows - rows.mean(axis=0), others - others.mean(axis=0)
    norms = np.outer(np.linalg.norm(rows, axis=0), np.linalg.norm(others, axis=0))
    found: Array = np.divide(rows.T @ others, norms, out=np.zeros_like(norms), where=norms > 1e-9)
    return found


def _ratio(rows: Array, others: Array, among: Array) -> float:
    """How many times as much the columns of the one vary; 1 where there are none."""
    return (
        float(np.median(rows.std(axis=0)[among] / others.std(axis=0)[among])) if among.any() else 1
    )


def _gripper(i: int, of: Array) -> str:
    return " (often the gripper)" if i == len(of) - 1 > 1 else ""
