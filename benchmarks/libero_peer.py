"""LeRobot's side of benchmarks/libero.py, run by an interpreter that has LeRobot and LIBERO.

python libero_peer.py save FOLDER                 a random ACT policy
python libero_peer.py rollout FOLDER TASK STEPS   LeRobot's own loop; prints one JSON object
python libero_peer.py times FOLDER TASK           what a step, two frames and inferences cost
"""

# ruff: noqa: E402 - the path is set right before anything is imported from it
from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import types
from typing import Any

# In place of this folder, whose libero.py would hide LIBERO.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src")

import gymnasium
import numpy as np
from gymnasium import spaces

LANES, SIZE, EXECUTED = 4, 128, 16
KEYS = {"image": "observation/image", "wrist_image": "observation/wrist_image"}


class LeRobotsView(gymnasium.Env[Any, Any]):
    """The very env that hocket runs, with observations as LeRobot's loop wants them."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, task: str, steps: int) -> None:
        from hocket.envs.libero import Libero

        suite = Libero(task, Libero.Config(size=SIZE))
        self._env = suite.make(task)
        self.task = task
        self.task_description = suite.tasks()[0].prompt
        self._max_episode_steps = steps
        image = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Dict(dict.fromkeys(KEYS, image)),
                "agent_pos": spaces.Box(-np.inf, np.inf, (8,), np.float64),
            }
        )
        self.action_space = self._env.action_space
        self._last: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen, _ = self._env.reset(seed=seed)
        return self._view(seen), {"is_success": False}

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = self._env.step(action)
        return self._view(seen), reward, terminated, truncated, {"is_success": info["success"]}

    def _view(self, seen: Any) -> dict[str, Any]:
        pixels = {name: seen[key] for name, key in KEYS.items()}
        return {"pixels": pixels, "agent_pos": seen["observation/state"]}

    def final_state(self) -> list[float]:
        """Where the simulation stands, to be compared with hocket's."""
        return [float(x) for x in self._env.get_state()]


def make(task: str, steps: int) -> Any:
    return lambda: LeRobotsView(task, steps)


def save(folder: str) -> None:
    from hocket.policies.lerobot_folder import mend_torchvision

    mend_torchvision()
    import torch
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    torch.manual_seed(0)
    image = PolicyFeature(type=FeatureType.VISUAL, shape=(3, SIZE, SIZE))
    config = ACTConfig(
        input_features={
            **{f"observation.images.{name}": image for name in KEYS},
            "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(8,)),
        },
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(7,))},
        chunk_size=50,
        n_action_steps=EXECUTED,
        pretrained_backbone_weights=None,
        device="cpu",
        push_to_hub=False,
    )
    ACTPolicy(config).save_pretrained(folder)
    one = {"mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0}
    sizes = {"observation.state": (8,), "action": (7,)}
    sizes.update({f"observation.images.{name}": (3, 1, 1) for name in KEYS})
    stats = {
        key: {name: torch.full(size, value) for name, value in one.items()}
        for key, size in sizes.items()
    }
    for part in make_pre_post_processors(config, dataset_stats=stats):
        part.save_pretrained(folder)


def rollout(folder: str, task: str, steps: int) -> dict[str, Any]:
    from hocket.policies.lerobot_folder import mend_torchvision

    envs = gymnasium.vector.AsyncVectorEnv(
        [make(task, steps) for _ in range(LANES)], context="forkserver", shared_memory=True
    )
    mend_torchvision()
    import torch
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.scripts import lerobot_eval

    torch.set_num_threads(1)
    config = PreTrainedConfig.from_pretrained(folder)
    policy = get_policy_class(config.type).from_pretrained(folder, config=config)
    before, after = make_pre_post_processors(config, pretrained_path=folder)
    nothing: Any = PolicyProcessorPipeline(steps=[])
    # LeRobot 0.4.4 looks at the first env of a SyncVectorEnv for what the task is called.
    envs.envs = [types.SimpleNamespace(task=task, task_description=task)]
    # Builds, compiles and warms up, as hocket's first run does.
    envs.reset(seed=[100 + lane for lane in range(LANES)])
    for _ in range(2):
        envs.step(np.zeros((LANES, 7), np.float32))
    began = time.perf_counter()
    done = lerobot_eval.rollout(
        envs, policy, nothing, nothing, before, after, seeds=list(range(LANES))
    )
    seconds = time.perf_counter() - began
    result = {
        "seconds": seconds,
        "env_steps": int(done["action"].shape[0] * done["action"].shape[1]),
        "returns": [float(x) for x in done["reward"].sum(dim=1)],
        "states": [list(state) for state in envs.call("final_state")],
    }
    envs.close(terminate=True)
    return result


def times(folder: str, task: str) -> dict[str, Any]:
    """CPU seconds of each part of the work, one at a time."""
    env = LeRobotsView(task, 1000)._env
    env.reset(seed=0)
    action = np.zeros(7, np.float32)
    step_s = min(_timed(lambda: [env.advance(action) for _ in range(8)]) for _ in range(4)) / 8
    look_s = min(_timed(env.observe) for _ in range(6))
    from hocket import plugins
    from hocket.data import Batch, Row, Trial

    policy = plugins.build("policies", f"lerobot:{folder}", {"device": "cpu", "threads": 1})
    seen = env.observe()
    row = Row(
        trial=Trial(suite="s", task="t", seed=0),
        attempt=0,
        chunk=0,
        noise_seed=0,
        prompt="",
        session="",
    )
    infer_s = {}
    for size in (1, 2, 4):
        arrays = {key: np.stack([seen[key]] * size) for key in seen}
        batch = Batch(arrays=arrays, rows=(row,) * size)
        infer_s[size] = min(_timed(lambda batch=batch: policy.infer(batch)) for _ in range(4))
    return {"step_s": step_s, "look_s": look_s, "infer_s": infer_s}


def _timed(act: Any) -> float:
    """CPU seconds of all threads, which other processes on the machine hardly change."""
    began = time.process_time()
    act()
    return time.process_time() - began


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        verb, arguments = sys.argv[1], sys.argv[2:]
        if verb == "save":
            answer: Any = save(*arguments)
        elif verb == "times":
            answer = times(*arguments)
        else:
            answer = rollout(arguments[0], arguments[1], int(arguments[2]))
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)
