"""A point that goes where its prompt says, and a small network that reads the prompt.

The env, the expert and the network of the four commands that docs/training.md begins with: collect,
clone, improve, evaluate. Both goals begin alike, so that without the prompt nobody does better than
one half.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

import hocket

GOALS = {"go to the left": (-0.6, 0.0), "go to the right": (0.6, 0.0)}
CHUNK, STEPS = 4, 12


class TwoGoals(gymnasium.Env[Any, Any]):
    """A point in a plane. It has succeeded when it is near the goal that the prompt names."""

    metadata = {"render_fps": 10}  # noqa: RUF012 - gymnasium's name for it

    def __init__(self) -> None:
        place = spaces.Box(-2, 2, (2,), np.float32)
        self.observation_space = spaces.Dict({"state": place, "prompt": spaces.Text(40)})
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-0.2, 0.2, 2)
        self._prompt = list(GOALS)[int(self.np_random.integers(len(GOALS)))]
        self._steps = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place = self._place + 0.15 * np.asarray(action, np.float64)
        self._steps += 1
        away = float(np.linalg.norm(self._place - GOALS[self._prompt]))
        return self._see(), -away, False, self._steps == STEPS, {"success": away < 0.12}

    def _see(self) -> dict[str, Any]:
        return {"state": self._place.astype(np.float32), "prompt": self._prompt}


class Expert:
    """Goes straight to the goal."""

    spec = hocket.PolicySpec(chunk_length=CHUNK, action_size=2)

    def infer(self, batch: Any) -> Any:
        goals = np.array([GOALS[row.prompt] for row in batch.rows])
        home = (goals - batch.arrays["observation/state"]) / (0.15 * CHUNK)
        return home[:, None].clip(-1, 1).repeat(CHUNK, axis=1)

    def close(self) -> None: ...


class TinyVLA(torch.nn.Module):
    """Reads the prompt by its letters, and answers with a chunk."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.letters = torch.nn.EmbeddingBag(256, width)
        self.trunk = torch.nn.Sequential(
            torch.nn.Linear(width + 2, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 64),
            torch.nn.ReLU(),
        )
        self.head = torch.nn.Linear(64, CHUNK * 2)

    def forward(self, observation: Any) -> torch.Tensor:
        texts = [
            torch.tensor(list(text.encode()), dtype=torch.int64) for text in observation.prompts
        ]
        starts = torch.tensor([0, *(len(text) for text in texts[:-1])]).cumsum(0)
        read = self.letters(torch.cat(texts), starts)
        seen = torch.cat((read, observation["observation/state"].float()), -1)
        return self.head(self.trunk(seen)).view(-1, CHUNK, 2)
