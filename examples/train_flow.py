"""Clone a weak expert into a flow-matching policy, then improve it with PPO through its chain.

    python examples/train_flow.py

The policy is `flow`: noise becomes a chunk in a few denoising steps, each with noise of its own, so
that the log-probability of the whole chain is exact. Start and end are measured on the same 100
trials, which training does not see. Takes three to five minutes on two cores.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from metaworld.policies import ENV_POLICY_MAP

import hocket
from hocket.adapters.envs.metaworld import MetaWorld
from hocket.core.data import ArraySpec
from hocket.train.config import TrainConfig
from hocket.train.learner import checkpoint
from hocket.train.loop import train
from hocket.train.networks.building import Description
from hocket.train.networks.contract import TASK, Shapes

TASK_NAME = "window-close-v3"
CHUNK, MAX_STEPS = 8, 150
STATE = "observation/state"
SETTINGS = {"chunk_length": CHUNK, "features": "metaworld", "std": 0.15, "hidden": [256, 256]}


def demonstrations(episodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    env = MetaWorld(TASK_NAME, MetaWorld.Config(max_steps=10_000)).make(TASK_NAME)
    env.use_cameras(())
    expert = ENV_POLICY_MAP[TASK_NAME]()
    states, chunks = [], []
    for episode in range(episodes):
        env.reset(seed=20_000 + episode)
        seen, done = [], []
        for _ in range(MAX_STEPS):
            seen.append(env.observe()[STATE])
            done.append(np.clip(expert.get_action(seen[-1]), -1, 1).astype(np.float32))
            env.advance(done[-1])
        for first in range(MAX_STEPS - CHUNK):
            states.append(seen[first])
            chunks.append(np.stack(done[first : first + CHUNK]))
    env.close()
    return torch.from_numpy(np.array(states)), torch.from_numpy(np.array(chunks))


def clone(folder: Path, updates: int) -> None:
    """A policy folder as `hocket train` itself writes it."""
    torch.manual_seed(0)
    states, chunks = demonstrations(4)
    description = Description(
        network="hocket.train.flow:FlowActor", config=SETTINGS, shapes=shapes()
    )
    network = description.build()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(updates):
        pick = torch.randint(len(states), (256,))
        observation = {STATE: states[pick], TASK: torch.zeros(256, dtype=torch.int64)}
        noise = torch.randn(256, CHUNK * 4 + 1)
        loss = network.matching_loss(observation, chunks[pick], noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    checkpoint.write_folder(
        folder,
        {checkpoint.WEIGHTS: network.state_dict()},
        {checkpoint.POLICY: description.to_plain()},
    )


def shapes() -> Shapes:
    return Shapes(
        observations={STATE: ArraySpec(shape=(39,), dtype="<f8")},
        action_size=4,
        tasks=(TASK_NAME,),
    )


def measure(what: str, policy: Path) -> None:
    report = hocket.evaluate(
        env=f"metaworld:{TASK_NAME}",
        policy=str(policy),
        episodes=100,
        seed=5000,
        lanes=2,
        env_config={"max_steps": MAX_STEPS},
    )
    success = report.overall.success
    between = f"[{success.interval.low:.0%}, {success.interval.high:.0%}]"
    print(f"{what}: {success.value:.0%} {between} of {success.n} unseen trials")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cloned, run = Path(folder) / "clone", Path(folder) / "run"
        clone(cloned, updates=30)
        config = TrainConfig(
            env=(f"metaworld:{TASK_NAME}",),
            env_config={"max_steps": MAX_STEPS},
            policy=str(cloned),
            mode="async",
            steps=250_000,
            lanes=2,
            # Chunks have one probability; comparing it action by action is what learns.
            ratio="action",
            eval_every=20_000,
            eval_episodes=30,
            eval_seed=7000,
            stop_at=0.99,
        )
        result = train(config, run)
        measure("start", cloned)
        measure("end", run / "best")
        print(f"trained for {result.env_steps} env steps")


if __name__ == "__main__":
    main()
