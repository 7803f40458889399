"""What a user should be told of an env, in sentences: what it leaves out, misspells or wastes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hocket.core.data import Array, Observation
from hocket.core.outcomes import SUCCESS_KEYS
from hocket.core.specs import TaskInfo
from hocket.workers.env.attempt import Attempt
from hocket.workers.env.spaces import PROMPT, SLACK, is_image

LARGEST = 4096
"""Most numbers of an array that is searched for NaN at each decision."""
_LONG = 1000
"""Steps of an episode after which a limit that is not there is worth a word."""
_WASTE = 2
"""Frames for each decision from which on they are worth a word."""


def of_reset(task: TaskInfo, *, prompt: str, reads: tuple[str, ...] | None) -> list[str]:
    """What the first reset shows. `reads` are the keys that the policy reads."""
    if prompt or PROMPT not in (reads or ()):
        return []
    return [
        f"The policy reads a prompt, and the env of {task.name!r} has none. Give it an attribute "
        f"prompt (or task, task_description, language_instruction); gym: envs take --env.prompt."
    ]


def of_length(attempt: Attempt) -> list[str]:
    """What is said of an episode that goes on and on, where nothing is known to end it. Most envs
    without a limit that hocket knows of end their episodes themselves, and sooner."""
    if attempt.limit or attempt.ends or attempt.steps < _LONG:
        return []
    return [
        f"The env of {attempt.task.name!r} has no step limit, and its episodes go on beyond "
        f"{_LONG:,} steps, perhaps for ever. Give --max-steps N, or the env an attribute max_steps."
    ]


def of_end(attempt: Attempt, info: Mapping[str, Any]) -> list[str]:
    """What the last step of an episode shows: an outcome that is told under another name."""
    if attempt.is_judged:
        return []
    meant = next((key for key in info if isinstance(key, str) and _is_near(key)), None)
    if meant is None:
        return []
    return [
        f"The env of {attempt.task.name!r} says info[{meant!r}], which is not read: an env tells "
        f"its outcome as info['success'] or info['is_success']. Its episodes count as finished, "
        f"neither as success nor as failure."
    ]


def of_frames(task: TaskInfo, arrays: Observation, *, frames: int, decisions: int) -> list[str]:
    """What is said of an env that cannot defer its observation, if it rendered far more than was
    looked at."""
    images = [key for key, array in arrays.items() if is_image(array)]
    if not images or frames < _WASTE * decisions:
        return []
    return [
        f"The env of {task.name!r} gives {', '.join(images)} at every step, and few of them are "
        f"looked at. With advance() and observe() it renders only those that somebody looks at: "
        f"docs/bring-an-env.md."
    ]


def of_observation(task: str, key: str) -> str:
    """What is said of an observation with a number that is none."""
    return (
        f"The env of {task!r} gives NaN or infinite numbers in {key}; the policy is given them as "
        f"they are."
    )


def of_reward(task: str) -> str:
    """What is said of such a reward."""
    return (
        f"The env of {task!r} gives rewards that are NaN or infinite: episodes with them have no "
        f"return."
    )


def of_actions(task: str) -> str:
    """What is said of actions outside of a bounded action space."""
    return (
        f"The policy's actions lie outside of the action space of {task!r} by more than "
        f"{100 * SLACK:.0f} % of its range; the env is given them as they are. `hocket check` "
        f"shows which."
    )


def of_pictures(task: str, arrays: Observation) -> list[str]:
    """What is said of pictures that cannot be filmed as they are."""
    return [
        f"The env of {task!r} gives {key} as {array.dtype} {array.shape}, a picture with its "
        f"channels first, which is not filmed: give pictures as height x width x channels."
        for key, array in sorted(arrays.items())
        if has_channels_first(array)
    ]


def has_channels_first(array: Array) -> bool:
    """True for what looks like a picture, channels x height x width."""
    if array.ndim != 3 or array.shape[2] in (1, 3, 4) or min(array.shape[1:]) <= 4:
        return False
    # Floats with one channel may be a depth.
    counts = (1, 3, 4) if array.dtype == np.uint8 else (3, 4) if array.dtype.kind == "f" else ()
    return array.shape[0] in counts


def not_finite(arrays: Mapping[str, Array]) -> list[str]:
    """Keys of the arrays with numbers that are NaN or infinite. Larger ones than `LARGEST`, such as
    depths, are not looked at."""
    return [
        key
        for key, array in arrays.items()
        if array.dtype.kind == "f" and array.size <= LARGEST and not np.isfinite(array).all()
    ]


def _is_near(key: str) -> bool:
    word = key.lower().replace("-", "_")
    return "succe" in word or bool(difflib.get_close_matches(word, SUCCESS_KEYS, cutoff=0.8))
