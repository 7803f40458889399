"""What asynchronous training gains with real work on both sides: MetaWorld and a large network.

    python benchmarks/training/overlap_real.py --device cuda --lanes 4

Nothing sleeps here. C and T, the seconds of collecting and of learning from one batch, are those of
the synchronous run; what async can gain over it is (C + T) / max(C, T). The number of epochs sets
their ratio, after a short run that tells what an epoch costs. Both sides use the same device, so
that whatever they take from each other counts. On a GPU they are two processes that take turns,
unless NVIDIA's MPS (`nvidia-cuda-mps-control -d`) lets both in at once: the output says which.

    python benchmarks/training/overlap_real.py --device cuda --network smolvla --lanes 32
    python benchmarks/training/overlap_real.py --device cuda --network pi0 --lanes 32 \\
        --micro-batch 8 --epochs 1 2

take the networks of `memory.py` that are as large as SmolVLA and as pi0, frozen but for LoRA, with
two cameras of 224 pixels and chunks of 50, in bf16; their env has random pictures, and sleeps 20 ms
in a step. Runs are kept in the folder for temporary files: one of pi0's size takes 13 GB there.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
import tyro
from torch import nn

import memory
from hocket.train.config import TrainConfig
from hocket.train.loop import train
from hocket.train.networks.actor import ChunkActor
from hocket.train.networks.contract import Shapes
from hocket.train.networks.policies import ActorConfig

MAX_STEPS = 100
CALIBRATION = 16
"""Epochs of the first run."""
SKIPPED = 3
"""First updates: caches, compilation and the first copies are no part of the figure."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    device: str = "cuda"
    network: Literal["actor", "smolvla", "pi0", "tiny"] = "actor"
    task: str = "reach-v3"
    width: int = 5200
    """Of the three hidden layers of actor and critic each: 5200 gives 109 million parameters."""
    lanes: int = 2
    batch: int = 32
    minibatch: int = 80
    """Chunks of a step: a fourth of what a batch has at most."""
    micro_batch: int = 32
    """Chunks that a VLA learns from at once."""
    ratios: tuple[float, ...] = (2.0, 1.0, 0.5)
    """C over T, roughly."""
    epochs: tuple[int, ...] = ()
    """In place of the ratios: no run has to tell first what an epoch costs."""
    updates: int = 12
    out: Path | None = None


class Cameras(gymnasium.Env[Any, Any]):
    """Two random pictures and a state; ends after a hundred steps."""

    def __init__(self, pixels: int = 224, step_s: float = 0.02) -> None:
        rng = np.random.default_rng(0)
        self._shown = rng.integers(0, 256, (8, pixels, pixels, 3), np.uint8)
        self._step_s = step_s
        image = gymnasium.spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "observation/image": image,
                "observation/wrist_image": image,
                "observation/state": gymnasium.spaces.Box(-9, 9, (memory.STATES,), np.float32),
            }
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (memory.ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        self._steps += 1
        reward = -float(np.square(action).sum())
        return self._see(), reward, False, self._steps >= MAX_STEPS, {}

    def _see(self) -> dict[str, Any]:
        first = self._steps % 7
        return {
            "observation/image": self._shown[first],
            "observation/wrist_image": self._shown[first + 1],
            "observation/state": self.np_random.normal(size=memory.STATES).astype(np.float32),
        }


class Drawn(memory.Vla):
    """Weights that repeat a million random numbers: to draw 3.3 billion takes minutes."""

    def __init__(self, size: memory.Size) -> None:
        with torch.device("meta"):
            super().__init__(size)
        self.to_empty(device="cpu")
        noise = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
        for parameter in self.parameters():
            flat = parameter.data.view(-1)
            for start in range(0, len(flat), len(noise)):
                flat[start : start + len(noise)] = noise[: len(flat) - start]
            flat *= parameter[0].numel() ** -0.5
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()


class SmolVla(Drawn):
    """As large as SmolVLA, with random weights."""

    def __init__(self) -> None:
        super().__init__(memory.SIZES["smolvla"])


class Pi0(Drawn):
    """As large as pi0, with random weights."""

    def __init__(self) -> None:
        super().__init__(memory.SIZES["pi0"])


class TinyVla(Drawn):
    """To see that this runs."""

    def __init__(self) -> None:
        super().__init__(memory.SIZES["tiny"])


class LargeActor(ChunkActor):
    """The actor with plainly drawn weights: orthogonal ones of this size take minutes."""

    def __init__(self, shapes: Shapes, config: ActorConfig) -> None:
        super().__init__(shapes, replace(config, hidden=(8,)))
        sizes = [self.actors[0][0].in_features, *config.hidden]
        self.actors = nn.ModuleList([plain([*sizes, self.noise_size])])
        self.critics = nn.ModuleList([plain([*sizes, 1])])


def plain(sizes: list[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def configured(setup: Benchmark, mode: str, epochs: int, updates: int) -> TrainConfig:
    if setup.network != "actor":
        return with_vla(setup, mode, epochs, updates)
    return TrainConfig(
        env=(f"metaworld:{setup.task}",),
        env_config={"max_steps": MAX_STEPS},
        policy="overlap_real:LargeActor",
        policy_config={"chunk_length": 10, "hidden": [setup.width] * 3},
        mode=mode,
        lanes=setup.lanes,
        batch=setup.batch,
        epochs=epochs,
        minibatch=setup.minibatch,
        lr=1e-6,
        steps=(updates + SKIPPED) * setup.batch * MAX_STEPS,
        eval_every=0,
        checkpoint_every=0,
        device=setup.device,
        collect_device=setup.device,
    )


def with_vla(setup: Benchmark, mode: str, epochs: int, updates: int) -> TrainConfig:
    is_large = setup.network != "tiny"
    network = {"smolvla": SmolVla, "pi0": Pi0}.get(setup.network, TinyVla)
    return TrainConfig(
        env=("overlap_real:Cameras",),
        env_config={} if is_large else {"pixels": 28, "step_s": 0.001},
        policy=f"torch:overlap_real:{network.__name__}",
        adapter="lora:r=16",
        precision="bf16" if is_large else "fp32",
        reward="env",
        mode=mode,
        lanes=setup.lanes,
        batch=setup.batch,
        epochs=epochs,
        minibatch=32,
        micro_batch=setup.micro_batch,
        target_kl=None,
        lr=1e-6,
        steps=(updates + SKIPPED) * setup.batch * MAX_STEPS,
        eval_every=0,
        checkpoint_every=0,
        device=setup.device,
        collect_device=setup.device,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Means over the updates of a run."""

    update_s: float
    learn_s: float
    infer_s: float
    step_s: float
    """Seconds that a lane's worker stepped, of all lanes the mean."""
    publish_s: float
    env_steps: float


def pace(config: TrainConfig) -> Pace:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", say=None)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    # What this process keeps for later, the learner of the next run would lack.
    gc.collect()
    torch.cuda.empty_cache()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    took, first, last = time.perf_counter() - began, records[0]["wall_s"], records[-1]["wall_s"]
    print(
        f"# {config.mode}, {config.epochs} epochs: {took:.0f} s, of which {first:.0f} s to the "
        f"first update and {last - first:.0f} s from there to the last",
        flush=True,
    )
    pairs = list(zip(records[SKIPPED - 1 :], records[SKIPPED:], strict=False))
    spans = [new["wall_s"] - old["wall_s"] for old, new in pairs]

    def seconds(share: str) -> float:
        return statistics.mean(
            span * new[f"time/{share}"] for span, (_, new) in zip(spans, pairs, strict=True)
        )

    return Pace(
        update_s=statistics.mean(spans),
        learn_s=seconds("learning"),
        infer_s=seconds("inferring"),
        step_s=seconds("stepping"),
        publish_s=statistics.mean(new["learn/publish_s"] for _, new in pairs),
        env_steps=statistics.mean(new["env_steps"] - old["env_steps"] for old, new in pairs),
    )


def compared(setup: Benchmark, epochs: int) -> dict[str, float]:
    sync, both = (
        pace(configured(setup, mode, epochs, setup.updates)) for mode in ("sync", "async")
    )
    collect_s = sync.update_s - sync.learn_s
    possible = sync.update_s / max(collect_s, sync.learn_s)
    gain = sync.update_s / both.update_s
    return {
        "epochs": epochs,
        "collect_s": collect_s,
        "learn_s": sync.learn_s,
        "sync_s": sync.update_s,
        "async_s": both.update_s,
        "gain": gain,
        "possible": possible,
        "share": gain / possible,
        **{f"sync_{key}": value for key, value in asdict(sync).items()},
        **{f"async_{key}": value for key, value in asdict(both).items()},
    }


def calibrated(setup: Benchmark) -> list[int]:
    """Epochs that give about the ratios."""
    epochs = CALIBRATION if setup.network == "actor" else 2
    first = pace(configured(setup, "sync", epochs, 3))
    epoch_s = first.learn_s / epochs
    collect_s = first.update_s - first.learn_s
    return [max(1, round(collect_s / ratio / epoch_s)) for ratio in setup.ratios]


def is_under_mps() -> bool:
    """Whether the daemon that lets processes share a GPU listens."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return (Path(folder) / "control").exists()


def main(setup: Benchmark) -> None:
    rows = []
    print(f"{setup.lanes} lanes, {os.cpu_count()} cores, MPS: {'yes' if is_under_mps() else 'no'}")
    print("| epochs | C s | T s | sync s/update | async s/update | gain | possible | share |")
    print("|---|---|---|---|---|---|---|---|")
    for epochs in setup.epochs or calibrated(setup):
        row = compared(setup, epochs)
        rows.append(row)
        shown = ("collect_s", "learn_s", "sync_s", "async_s", "gain", "possible", "share")
        print(f"| {epochs} | " + " | ".join(f"{row[key]:.2f}" for key in shown) + " |", flush=True)
        if setup.out is not None:
            setup.out.write_text(json.dumps(rows, indent=1))
    print("\nSeconds of an update, sync against async:\n")
    print("| epochs | inferring | stepping, of a lane | learning | of it, publishing | env steps |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        parts = (
            f"{row[f'sync_{key}']:.3f} / {row[f'async_{key}']:.3f}"
            for key in ("infer_s", "step_s", "learn_s", "publish_s")
        )
        steps = f"{row['sync_env_steps']:.0f} / {row['async_env_steps']:.0f}"
        print(f"| {row['epochs']} | " + " | ".join(parts) + f" | {steps} |")


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
