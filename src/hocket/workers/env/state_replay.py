"""Shows an ended attempt again, from the simulator states that were kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hocket.core.data import Array
from hocket.errors import EnvError
from hocket.workers.attempt import Attempt
from hocket.workers.env.live_env import Stage
from hocket.workers.recording import Recording
from hocket.workers.shm import Control
from hocket.workers.spaces import flatten


def show_again(
    stage: Stage,
    recording: Recording,
    attempt: Attempt,
    states: Array,
    record: Mapping[str, Any],
    control: Control,
) -> None:
    """Restore states `[n, S]` one after the other and record what is observed at each."""
    if "deferred" not in stage.abilities:
        raise EnvError(f"The env of {stage.task.name!r} cannot be observed without a step.")
    recording.prepare(stage.task, record, stage.abilities)
    needs = recording.needs
    # The reset lays out the scene; its own picture is of no use.
    stage.show(())
    stage.reset(attempt.trial)
    stage.show(None if needs.all_cameras else needs.cameras)
    recording.open(attempt, stage.task.prompt, record)
    for step, state in enumerate(states):
        stage.restore(state)
        arrays, _ = flatten(stage.observe())
        attempt.steps = step
        recording.step(attempt, None, 0.0, chunk=-1, age=0, observation=arrays, state=None)
        control.count_step(0)
