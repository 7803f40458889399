"""The loop closed: demonstrations, LeRobot's ACT trained on them, and its evaluation.

    hocket venv lerobot
    hocket collect --env metaworld:reach,metaworld:drawer-open,metaworld:button-press-topdown \\
        --env.size 64 --env.render fast --policy metaworld-expert --episodes 100 \\
        --to lerobot datasets/three-tasks
    venvs/lerobot/bin/python examples/act_metaworld.py datasets/three-tasks checkpoints/act
    hocket eval --env metaworld:reach,metaworld:drawer-open,metaworld:button-press-topdown \\
        --env.size 64 --env.render fast --policy lerobot:checkpoints/act \\
        --policy-python venvs/lerobot/bin/python --policy.threads 1 --episodes 20 --seed 10000

This file is the middle step: it runs in LeRobot's interpreter, on a CPU, for some minutes. What it
cost and what came of it is in docs/lerobot.md.
"""

# ruff: noqa: E402 - LeRobot is imported once torchvision is sure to be importable
from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

from hocket.adapters.policies.lerobot.folder import mend_torchvision

mend_torchvision()

import av
import numpy as np
import torch
from lerobot.configs.types import FeatureType
from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata
from lerobot.datasets.utils import dataset_to_policy_features, load_nested_dataset
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors

CAMERA = "observation.images.image"


def read_pictures(meta: LeRobotDatasetMetadata) -> np.ndarray[Any, Any]:
    """Every picture of the dataset in order, uint8 `[N, H, W, 3]`: it is small enough."""
    files = sorted((meta.root / "videos" / CAMERA).glob("*/*.mp4"))
    pictures = []
    for file in files:
        with av.open(str(file)) as video:
            pictures += [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    return np.stack(pictures)


class Windows:
    """Observations with the actions that followed, padded where the episode ended."""

    def __init__(self, root: Path, meta: LeRobotDatasetMetadata, chunk: int) -> None:
        table = load_nested_dataset(root / "data").with_format("numpy")
        self._states = torch.from_numpy(np.stack(table["observation.state"]))
        self._actions = torch.from_numpy(np.stack(table["action"]))
        self._pictures = torch.from_numpy(read_pictures(meta))
        if len(self._pictures) != len(self._states):
            raise SystemExit("The dataset's pictures and rows are not equally many.")
        episode = torch.from_numpy(np.array(table["episode_index"]))
        changes = torch.nonzero(episode[1:] != episode[:-1])[:, 0]
        ends = torch.cat([changes, torch.tensor([len(episode) - 1])])
        self._last = ends[episode]
        self._steps = torch.arange(chunk)

    def __len__(self) -> int:
        return len(self._states)

    def batch(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        steps = rows[:, None] + self._steps
        return {
            "observation.state": self._states[rows],
            CAMERA: self._pictures[rows].permute(0, 3, 1, 2).float() / 255,
            "action": self._actions[torch.minimum(steps, self._last[rows][:, None])],
            "action_is_pad": steps > self._last[rows][:, None],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=20.0, help="stop after this long")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--chunk", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0, help="of torch's; 0 leaves them")
    flags = parser.parse_args()

    if flags.threads:
        torch.set_num_threads(flags.threads)
    torch.manual_seed(0)
    meta = LeRobotDatasetMetadata("local/three-tasks", root=flags.dataset)
    features = dataset_to_policy_features(meta.features)
    wanted = ("observation.state", CAMERA)
    config = ACTConfig(
        input_features={key: features[key] for key in wanted},
        output_features={k: f for k, f in features.items() if f.type is FeatureType.ACTION},
        chunk_size=flags.chunk,
        n_action_steps=flags.chunk // 2,
        dim_model=128,
        n_heads=4,
        dim_feedforward=512,
        n_encoder_layers=2,
        use_vae=False,
        pretrained_backbone_weights=None,
        device="cpu",
        push_to_hub=False,
    )
    policy = ACTPolicy(config).train()
    before, after = make_pre_post_processors(config, dataset_stats=meta.stats)
    windows = Windows(flags.dataset, meta, flags.chunk)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=flags.rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, flags.rate, flags.steps, pct_start=0.05
    )
    began, shown = time.monotonic(), 0.0
    for step in range(flags.steps):
        batch = before(windows.batch(torch.randint(len(windows), (flags.batch,))))
        loss, _ = policy.forward(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        shown = 0.98 * shown + 0.02 * loss.item() if step else loss.item()
        if step % 100 == 0:
            print(f"step {step}: loss {shown:.3f}, {time.monotonic() - began:.0f} s", flush=True)
        if time.monotonic() - began > 60 * flags.minutes:
            break
    policy.save_pretrained(flags.out)
    before.save_pretrained(flags.out)
    after.save_pretrained(flags.out)
    print(f"saved to {flags.out} after {step + 1} steps, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
