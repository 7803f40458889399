"""An env as a package `lerobot_env_NAME` of somebody else's would have it, and as a repository of
EnvHub would: its check makes it both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import gymnasium
import numpy as np
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig, HubEnvConfig
from lerobot.processor import PolicyProcessorPipeline, ProcessorStep

HUB = "someone/dots"
MODULE = __name__


class Halved(ProcessorStep):
    """What the env takes is half of what the policy says."""

    def __call__(self, transition):
        return {**transition, "action": transition["action"] / 2}

    def transform_features(self, features):
        return features


class Dot(gymnasium.Env):
    """A dot that is pushed about, and wanted in the middle; how far it goes is drawn."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    task_description = "push the dot to the middle"
    _max_episode_steps = 12

    def __init__(self, render_mode="rgb_array"):
        self.render_mode = render_mode
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {
                "pixels": gymnasium.spaces.Dict({"eye": box(0, 255, (64, 64, 3), np.uint8)}),
                "agent_pos": box(-9, 9, (2,), np.float64),
            }
        )
        self.action_space = box(-1, 1, (2,), np.float32)

    def _look(self):
        return {"pixels": {"eye": self.render()}, "agent_pos": self.place.copy()}

    def render(self):
        picture = np.zeros((64, 64, 3), np.uint8)
        row, column = (32 + 5 * self.place).astype(int) % 64
        picture[row, column] = 255
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-2, 2, 2)
        return self._look(), {"is_success": False}

    def step(self, action):
        self.place = self.place + 0.3 * np.asarray(action, np.float64) * self.np_random.uniform()
        distance = float(np.linalg.norm(self.place))
        is_there = distance < 1.5
        return self._look(), -distance, is_there, False, {"is_success": is_there}


def features():
    return {
        "action": PolicyFeature(type=FeatureType.ACTION, shape=(2,)),
        "agent_pos": PolicyFeature(type=FeatureType.STATE, shape=(2,)),
        "pixels/eye": PolicyFeature(type=FeatureType.VISUAL, shape=(64, 64, 3)),
    }


def names():
    return {
        "action": "action",
        "agent_pos": "observation.state",
        "pixels/eye": "observation.images.eye",
    }


@EnvConfig.register_subclass("dot")
@dataclass
class DotConfig(EnvConfig):
    task: str = "Dot-v0"
    features: dict[str, PolicyFeature] = field(default_factory=features)
    features_map: dict[str, str] = field(default_factory=names)

    @property
    def gym_kwargs(self):
        return {}

    def get_env_processors(self):
        return PolicyProcessorPipeline(steps=[]), PolicyProcessorPipeline(steps=[Halved()])


@EnvConfig.register_subclass("dots_of_the_hub")
@dataclass
class HubDotConfig(HubEnvConfig):
    hub_path: str = HUB
    features: dict[str, PolicyFeature] = field(default_factory=features)
    features_map: dict[str, str] = field(default_factory=names)


if "gym_dot/Dot-v0" not in gymnasium.registry:
    gymnasium.register("gym_dot/Dot-v0", Dot)
ENV_PY = f"""
import gymnasium
from {MODULE} import Dot

def make_env(n_envs=1, use_async_envs=False, cfg=None):
    return gymnasium.vector.SyncVectorEnv([Dot] * n_envs)
"""
"""What the repository holds."""
