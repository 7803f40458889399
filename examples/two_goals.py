"""A point that goes where its prompt says, and a small network that sees it and reads the prompt.

The env, the expert and the network of the four commands that docs/training.md begins with: collect,
clone, improve, evaluate. Both goals begin alike, so that without the prompt nobody does better than
one half; where the point is, the network sees in the picture of a camera alone.
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
PIXELS = 16
GRID = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, PIXELS)]), -1)


class TwoGoals(gymnasium.Env[Any, Any]):
    """A point in a plane. It has succeeded when it is near the goal that the prompt names."""

    metadata = {"render_fps": 10}  # noqa: RUF012 - gymnasium's name for it

    def __init__(self) -> None:
        place = spaces.Box(-2, 2, (2,), np.float32)
        picture = spaces.Box(0, 255, (PIXELS, PIXELS, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {"state": place, "image": picture, "prompt": spaces.Text(40)}
        )
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
        spots = np.stack([self._place, *GOALS.values()], -1)
        away = np.square(GRID[..., None] - spots).sum(2)
        picture = (255 * np.exp(-20 * away)).astype(np.uint8)
        return {
            "state": self._place.astype(np.float32),
            "image": picture,
            "prompt": self._prompt,
        }


class Expert:
    """Goes straight to the goal."""

    spec = hocket.PolicySpec(chunk_length=CHUNK, action_size=2)

    def infer(self, batch: Any) -> Any:
        goals = np.array([GOALS[row.prompt] for row in batch.rows])
        home = (goals - batch.arrays["observation/state"]) / (0.15 * CHUNK)
        return home[:, None].clip(-1, 1).repeat(CHUNK, axis=1)

    def close(self) -> None: ...


class TinyVLA(torch.nn.Module):
    """Reads the prompt by its letters, looks at the picture, and answers with a chunk."""

    critic_features = "trunk"

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.letters = torch.nn.EmbeddingBag(256, width)
        self.eyes = torch.nn.Linear(PIXELS * PIXELS * 3, width)
        self.trunk = torch.nn.Sequential(
            torch.nn.Linear(2 * width, 64),
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
        looked = self.eyes(observation["observation/image"].flatten(1).float() / 255)
        return self.head(self.trunk(torch.cat((read, looked), -1))).view(-1, CHUNK, 2)
