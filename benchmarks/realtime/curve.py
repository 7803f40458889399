"""What latency costs a flow policy in MetaWorld, by method, on the same trials.

Clones the scripted expert into a flow policy (chunks of 16 actions, a decision every 8), and then
evaluates it with delays of 0 to 8 control steps by each method.

    python benchmarks/realtime/curve.py OUT [--task push-v3] [--episodes 200] [--delays 0,1,2,4,6,8]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from metaworld.policies import ENV_POLICY_MAP

from hocket.adapters.envs.metaworld import MetaWorld
from hocket.core.data import ArraySpec
from hocket.results.progress import Progress
from hocket.runs.sweep import run_sweep, sweep_jobs
from hocket.train.learner import checkpoint
from hocket.train.networks.building import Description
from hocket.train.networks.contract import PROMPT, TASK, Observations, Shapes

CHUNK, REPLAN, MAX_STEPS = 16, 8, 150
STATE = "observation/state"
SETTINGS = {
    "chunk_length": CHUNK,
    "denoising_steps": 5,
    "features": "metaworld",
    "hidden": [256, 256],
}


def demonstrations(task: str, episodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """States and the chunks that the expert went on with. It is pushed about a little, so that the
    clone has seen how to come back."""
    env = MetaWorld(task, MetaWorld.Config(max_steps=10_000)).make(task)
    env.use_cameras(())
    expert, draw = ENV_POLICY_MAP[task](), np.random.default_rng(0)
    states, chunks = [], []
    for episode in range(episodes):
        env.reset(seed=20_000 + episode)
        seen, done = [], []
        for _ in range(MAX_STEPS):
            seen.append(env.observe()[STATE])
            done.append(np.clip(expert.get_action(seen[-1]), -1, 1).astype(np.float32))
            pushed = done[-1] + draw.normal(0, 0.3, 4) * np.array([1, 1, 1, 0])
            env.advance(np.clip(pushed, -1, 1).astype(np.float32))
        for first in range(MAX_STEPS - CHUNK):
            states.append(seen[first])
            chunks.append(np.stack(done[first : first + CHUNK]))
    env.close()
    return torch.from_numpy(np.array(states)), torch.from_numpy(np.array(chunks))


def clone(folder: Path, task: str, episodes: int, updates: int) -> None:
    """A policy folder as `hocket train` itself writes it."""
    torch.manual_seed(0)
    states, chunks = demonstrations(task, episodes)
    shapes = Shapes(
        observations={STATE: ArraySpec(shape=(39,), dtype="<f8")}, action_size=4, tasks=(task,)
    )
    described = Description(
        network="hocket.train.flow:FlowActor", config=SETTINGS, shapes=shapes, replan=REPLAN
    )
    network = described.build()
    with torch.no_grad():
        zeros = torch.zeros(len(states), dtype=torch.int64)
        features, _ = network.encode(Observations({STATE: states, TASK: zeros, PROMPT: zeros}))
        network.mean[0] = features.mean(0)
        network.scale[0] = features.std(0).clamp_min(1e-3)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        pick = torch.randint(len(states), (256,))
        none = torch.zeros(256, dtype=torch.int64)
        seen = Observations({STATE: states[pick], TASK: none, PROMPT: none})
        noise = torch.randn(256, CHUNK * 4 + 1)
        loss = network.matching_loss(seen, chunks[pick], noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    checkpoint.write_folder(
        folder,
        {checkpoint.WEIGHTS: network.state_dict()},
        {checkpoint.POLICY: described.to_plain()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", default="push-v3")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--delays", default="0,1,2,4,6,8")
    parser.add_argument("--methods", default="naive,rtc,blocking")
    parser.add_argument("--demonstrations", type=int, default=60)
    parser.add_argument("--updates", type=int, default=4000)
    parser.add_argument("--lanes", type=int, default=2)
    given = parser.parse_args()
    policy = given.out / "policy"
    if not policy.exists():
        given.out.mkdir(parents=True, exist_ok=True)
        clone(policy, given.task, given.demonstrations, given.updates)
    found = {}
    for method in given.methods.split(","):
        jobs = sweep_jobs(
            {
                "env": f"metaworld:{given.task}",
                "env_config": {"max_steps": MAX_STEPS},
                "policy": str(policy),
                "policy_config": {"sample": True},
                "episodes": given.episodes,
                "seed": 5000,
                "lanes": given.lanes,
                "delay": given.delays,
                "method": method,
                "video": "none",
            }
        )
        _, report = run_sweep(jobs, given.out / method, reader=lambda _: Progress(quiet=True))
        print(f"--method {method}\n{report.table().text(120)}\n", flush=True)
        found[method] = report.to_json()
    (given.out / "curve.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
