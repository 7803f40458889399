"""HalfCheetah-v5 from one start, and a policy that swings its legs to an episode's own beat, so
that a simulator that draws its own starts runs the same episodes. It needs neither hocket nor
MuJoCo.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CHUNK, ACTIONS, STEPS = 16, 6, 64
"""Of a cheetah that runs for longer, two builds of MuJoCo that differ in the last bits tell
different returns."""
ENV = {"id": "HalfCheetah-v5", "reset_noise_scale": 0.0, "max_episode_steps": STEPS}


def swing(observations: Any, episodes: Any, chunks: Any) -> Any:
    """Chunks `[B, T, A]` by what is seen, which episode it is, and how many chunks it has had."""
    steps = CHUNK * np.asarray(chunks)[:, None, None] + np.arange(CHUNK)[None, :, None]
    beat = (np.asarray(episodes)[:, None, None] + 1.0) * np.arange(1, ACTIONS + 1) / 7.0
    lean = np.asarray(observations)[:, 1][:, None, None]
    return np.sin(0.3 * steps + beat + lean)


def make() -> Any:
    """The env factory: `cheetah:make`."""
    import gymnasium

    return gymnasium.make(**ENV)
