"""What a user should be told of an env, in sentences: what it leaves out, misspells or wastes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from hocket.core.data import Observation, TaskInfo
from hocket.workers.env.attempt import SUCCESS_KEYS, Attempt
from hocket.workers.env.spaces import PROMPT, is_image

_WASTE = 2
"""Frames for each decision from which on they are worth a word."""


def of_reset(
    task: TaskInfo, *, limit: int, prompt: str, reads: tuple[str, ...] | None
) -> list[str]:
    """What the first reset shows. `limit` is the run's own limit of steps, 0 where it has none;
    `reads` are the keys that the policy reads."""
    found = []
    if not limit and not task.max_steps:
        found.append(
            f"The env of {task.name!r} has no step limit: an episode ends when the env says so, "
            f"and perhaps never. Give --max-steps N, or the env an attribute max_steps."
        )
    if not prompt and PROMPT in (reads or ()):
        found.append(
            f"The policy reads a prompt, and the env of {task.name!r} has none. Give it an "
            f"attribute prompt (or task, task_description, language_instruction); gym: envs take "
            f"--env.prompt."
        )
    return found


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
    """What an env that cannot defer its observation rendered, if far more than was looked at."""
    images = [key for key, array in arrays.items() if is_image(array)]
    if not images or frames < _WASTE * decisions:
        return []
    return [
        f"The env of {task.name!r} gave {frames} frames of {', '.join(images)} for {decisions} "
        f"decisions. With advance() and observe() it renders only those that somebody looks at: "
        f"docs/bring-an-env.md."
    ]


def _is_near(key: str) -> bool:
    word = key.lower().replace("-", "_")
    return "succe" in word or bool(difflib.get_close_matches(word, SUCCESS_KEYS, cutoff=0.8))
