"""Runs one trial of a run again and compares it with what was recorded, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hocket.core.contracts.policy import Policy
from hocket.core.data import Actions, Array, Batch, Episode, Outcome, Trial
from hocket.core.plugins import did_you_mean
from hocket.core.specs import PolicySpec
from hocket.errors import EnvError, PolicyError, RunFolderError, UnknownNameError
from hocket.records.folder import FolderLike, RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import KeptStates, load_steps
from hocket.runs.config import EvalConfig
from hocket.runs.run import Run
from hocket.system.scratch import ScratchFolder
from hocket.workers.sinks.steps import read_layout, split_states

_NUMBERS = ("action", "reward", "terminated", "truncated", "success")
SIMULATOR = "simulator state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first point at which two runs of a trial differ."""

    step: int
    """The step; 0 is the reset."""
    key: str
    recorded: str
    again: str
    max_abs: float | None
    """The largest absolute difference; None where there is none to take."""

    def __str__(self) -> str:
        size = "" if self.max_abs is None else f" (by up to {self.max_abs:.6g})"
        return (
            f"step {self.step}: {self.key} differs{size}\n"
            f"  recorded: {self.recorded}\n  again:    {self.again}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What came of running a trial again."""

    trial: Trial
    steps: int
    """The length of the recorded episode."""
    compared: Mapping[str, int]
    """How many values of each key were compared, up to the first difference."""
    difference: Divergence | None

    def __str__(self) -> str:
        if self.difference is not None:
            return str(self.difference)
        counts = ", ".join(f"{key} {count}" for key, count in self.compared.items())
        return f"identical: {self.steps} steps (compared: {counts})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedNumbers:
    """The numbers of one episode."""

    rows: Sequence[Mapping[str, Any]]
    """Its rows of the table `steps`, the reset first."""
    states: Array | None
    """The simulator's states, where they were kept."""
    observed: Sequence[Mapping[str, Array]]
    """What was seen after each step, by key; empty where nothing was."""

    @property
    def keys(self) -> list[str]:
        """The keys of its observations."""
        return sorted({key for seen in self.observed for key in seen})

    def value(self, step: int, key: str) -> Any:
        """The value of a key at a step; None where none was recorded."""
        if key == SIMULATOR:
            return None if self.states is None else self.states[step]
        return self.rows[step][key] if key in _NUMBERS else self.observed[step].get(key)


def verify(
    path: FolderLike,
    trial_name: str,
    *,
    with_policy: bool = False,
    adapt: Callable[[EvalConfig], EvalConfig] = lambda config: config,
) -> ReplayResult:
    """Run a trial again, with its recorded actions or with its policy: in this process, unless the
    run's runtime, or what `adapt` makes of its configuration, says otherwise."""
    folder = RunFolder.at(path)
    with LedgerView.open(folder) as ledger:
        trial = find_trial(ledger.trials(), trial_name)
        config = adapt(EvalConfig.from_plain(ledger.meta()["config"]))
        episode = _episode(trial, ledger.episodes())
    recorded = _read(folder, episode)
    if not recorded.rows:
        raise RunFolderError(
            f"No steps of {trial.id} are recorded: the run was made with --record none."
        )
    if with_policy:
        again = _run(config, trial, None)
    else:
        # The recorded actions are those that a rule of chunks had chosen already.
        bare = replace(config, replan=None, ensemble=None, max_steps=episode.steps)
        again = _run(bare, trial, RecordedActions(recorded.rows))
    return compare(trial, recorded, again)


def compare(trial: Trial, recorded: RecordedNumbers, again: RecordedNumbers) -> ReplayResult:
    """Look at both step by step, and stop at the first difference."""
    compared = dict.fromkeys((*_NUMBERS, *recorded.keys, SIMULATOR), 0)
    difference: Divergence | None = None
    shared = range(min(len(recorded.rows), len(again.rows)))
    for step, key in itertools.product(shared, compared):
        old, new = recorded.value(step, key), again.value(step, key)
        if old is None or new is None:
            continue
        compared[key] += 1
        difference = _divergence(step, key, old, new)
        if difference is not None:
            break
    steps = [len(part.rows) - 1 for part in (recorded, again)]
    if difference is None and steps[0] != steps[1]:
        difference = Divergence(
            step=min(steps),
            key="number of steps",
            recorded=str(steps[0]),
            again=str(steps[1]),
            max_abs=float(abs(steps[0] - steps[1])),
        )
    known = {key: count for key, count in compared.items() if count}
    return ReplayResult(trial=trial, steps=steps[0], compared=known, difference=difference)


def find_trial(trials: Sequence[Trial], name: str) -> Trial:
    """The trial of this id, folder name, or last part of an id that only one has."""
    for trial in trials:
        if name in (trial.id, trial.slug):
            return trial
    ending = [trial for trial in trials if trial.id.endswith(f"/{name}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        some = ", ".join(trial.id for trial in ending[:4])
        raise UnknownNameError(f"{len(ending)} trials end in {name!r} ({some} ...). Give more.")
    raise UnknownNameError(
        f"The run has no trial {name!r}.{did_you_mean(name, [trial.id for trial in trials])} "
        f"Trials are named like {trials[0].id!r}."
    )


class RecordedActions:
    """A policy that answers with the actions that an episode executed, chunk by chunk."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._chunks: dict[int, list[list[float]]] = {}
        for row in rows:
            if row["action"] is not None:
                self._chunks.setdefault(row["chunk"], []).append(row["action"])
        sizes = {len(action) for chunk in self._chunks.values() for action in chunk}
        self.spec = PolicySpec(
            chunk_length=0,
            action_size=sizes.pop() if sizes else None,
            cameras=(),
            max_batch=1,
            batch_invariant=True,
        )

    def infer(self, batch: Batch) -> Actions:
        chunk = self._chunks.get(batch.rows[0].chunk)
        if chunk is None:
            raise PolicyError(f"The recorded episode had no chunk {batch.rows[0].chunk}.")
        return Actions(np.repeat(np.array([chunk], np.float64), batch.size, axis=0))

    def close(self) -> None: ...


def _run(config: EvalConfig, trial: Trial, policy: Policy | None) -> RecordedNumbers:
    """Run one trial, recorded in a folder that is gone afterwards."""
    alone = replace(
        config,
        lanes=1,
        retries=0,
        record="numbers",
        video="none",
        until="done",
        against=None,
    )
    with ScratchFolder("replay") as scratch:
        folder = RunFolder.at(scratch.path / "run")
        with Run.new(alone, folder.root, [trial]) as run:
            report = run.finish(policy=policy, check=False)
        if not report.complete:
            raise KeyboardInterrupt
        (episode,) = report.episodes
        if episode.outcome is Outcome.ERROR:
            raise EnvError(f"{trial.id} cannot be run again.\n{episode.error}")
        return _read(folder, episode)


def _read(folder: RunFolder, episode: Episode) -> RecordedNumbers:
    rows = load_steps(folder, [episode.trial]).to_pylist()
    states = KeptStates(folder).load(episode)
    if states is not None and len(states) != len(rows):
        raise RunFolderError(f"{episode.trial.id} has {len(states)} states for {len(rows)} steps.")
    return RecordedNumbers(rows=rows, states=states, observed=[_observed(row) for row in rows])


def _observed(row: Mapping[str, Any]) -> Mapping[str, Array]:
    """What a row of the table `steps` has of an observation, by key."""
    if row["state"] is None:
        return {}
    state = np.array([row["state"]])
    return {key: rows[0] for key, rows in split_states(state, read_layout(row["layout"])).items()}


def _episode(trial: Trial, episodes: Sequence[Episode]) -> Episode:
    found = [episode for episode in episodes if episode.trial == trial]
    if not found:
        raise RunFolderError(f"{trial.id} has not been run yet. `hocket resume` runs it.")
    if found[0].outcome is Outcome.ERROR:
        raise RunFolderError(
            f"{trial.id} ended as an error, so that there is nothing to compare with:\n"
            f"{found[0].error}"
        )
    return found[0]


def _divergence(step: int, key: str, old: Any, new: Any) -> Divergence | None:
    was, now = np.asarray(old, float).reshape(-1), np.asarray(new, float).reshape(-1)
    if np.array_equal(was, now, equal_nan=True):
        return None
    if was.shape != now.shape:
        shapes = f"{was.size} numbers", f"{now.size} numbers"
        return Divergence(step=step, key=key, recorded=shapes[0], again=shapes[1], max_abs=None)
    apart = np.abs(was - now)
    finite = apart[np.isfinite(apart)]
    is_same = (was == now) | (np.isnan(was) & np.isnan(now))
    index = int(np.argmin(is_same))
    if isinstance(old, bool):
        return Divergence(step=step, key=key, recorded=str(old), again=str(new), max_abs=None)
    name = key if was.size == 1 else f"{key}[{index}]"
    return Divergence(
        step=step,
        key=name,
        recorded=repr(float(was[index])),
        again=repr(float(now[index])),
        max_abs=float(finite.max()) if finite.size else None,
    )
