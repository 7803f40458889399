"""What training LeRobot's SmolVLA, pi0 and pi0.5 costs at their real sizes: memory, chunks a
second, seconds an update, and async's share of what overlap can gain.

    hocket venv lerobot
    venvs/lerobot/bin/python benchmarks/training/vla_sizes.py --models /tmp/models
    venvs/lerobot/bin/python benchmarks/training/vla_sizes.py --models /tmp/tiny --tiny --device cpu

Weights are random and written once into `--models` as LeRobot writes them (pi0 has 13 GB), so that
nothing is fetched. They are frozen but for LoRA and trained by PPO through one noisy step of their
flow, with two cameras and chunks of 50, in envs whose steps take 20 ms. Peaks are what torch
allocated on the GPU in the synchronous run, where one process acts and learns; without a GPU, the
most memory that this process had. Tiny networks of pi0's kind are made by patching LeRobot, which
another process does not see: they are tried in synchronous mode alone.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from hocket.adapters.policies.lerobot.folder import mend_torchvision

mend_torchvision()

import torch  # noqa: E402
import tyro  # noqa: E402

import memory  # noqa: E402
import overlap_real  # noqa: E402
from hocket.train.config import TrainConfig  # noqa: E402
from overlap_real import MAX_STEPS, SKIPPED, Pace, pace  # noqa: E402
from support import lerobot_models as models  # noqa: E402
from support import lerobot_vision as vision  # noqa: E402

Kind = Literal["smolvla", "pi0", "pi05"]
WORDS = 48
SMOLVLM = {
    "text_config": {
        "model_type": "llama",
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "vocab_size": 49_280,
        "pad_token_id": 0,
    },
    "vision_config": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 512,
        "patch_size": 16,
    },
    "scale_factor": 4,
}
"""Sizes of SmolVLM2 500M, of which SmolVLA keeps 16 layers."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    models: Path
    """Where weights are written, and found again."""
    kinds: tuple[Kind, ...] = ("smolvla", "pi0", "pi05")
    device: str = "cuda"
    lanes: int = 32
    batch: int = 32
    epochs: int = 2
    micro_batches: tuple[int, ...] = (8, 32)
    checkpoint_activations: bool = False
    updates: int = 4
    tiny: bool = False
    """Networks of nothing, to see that this runs."""


def saved(setup: Benchmark, kind: Kind) -> Path:
    """The folder of a policy of this kind, made where it is not there yet."""
    folder, words = setup.models / kind, setup.models / f"{kind}-words"
    is_new = not (folder / "config.json").exists()
    settings: dict[str, object] = {}
    if kind == "smolvla":
        settings["vlm_model_name"] = str(models.save_backbone(words) if is_new else words)
        if not setup.tiny and is_new:
            models.edit(words, **SMOLVLM)
            settings |= {"num_vlm_layers": 16, "expert_width_multiplier": 0.75, "num_steps": 10}
            settings |= {"resize_imgs_with_padding": (512, 512)}
    elif setup.tiny:
        vision.shrink_pi(kind, models.save_backbone(words))
    elif is_new:
        own_words(kind, models.save_backbone(words))
        settings |= {"image_resolution": (224, 224), "num_inference_steps": 10}
    if not setup.tiny:
        settings |= {"chunk_size": 50, "n_action_steps": 50, "max_state_dim": 32}
        settings |= {"max_action_dim": 32, "tokenizer_max_length": WORDS if kind != "pi05" else 200}
    if is_new:
        sizes = {"size": 28 if setup.tiny else 224, "states": memory.STATES}
        models.save(kind, folder, moves=memory.ACTIONS, **sizes, **settings)
    return folder


def own_words(kind: Kind, words: Path) -> None:
    """Let a policy of this kind be saved with this tokenizer; its own is on the hub."""
    processing = importlib.import_module(f"lerobot.policies.{kind}.processor_{kind}")
    step = processing.TokenizerProcessorStep
    processing.TokenizerProcessorStep = lambda tokenizer_name, **settings: step(
        tokenizer_name=str(words), **settings
    )


def configured(setup: Benchmark, folder: Path, micro_batch: int) -> TrainConfig:
    return TrainConfig(
        env=("overlap_real:Cameras",),
        env_config={"pixels": 28, "step_s": 0.001} if setup.tiny else {},
        policy=f"lerobot:{folder}",
        adapter="lora:r=16",
        precision="fp32" if setup.tiny else "bf16",
        noise_at="one",
        reward="env",
        lanes=setup.lanes,
        batch=setup.batch,
        epochs=setup.epochs,
        minibatch=32,
        micro_batch=micro_batch,
        checkpoint_activations=setup.checkpoint_activations,
        target_kl=None,
        lr=1e-6,
        steps=(setup.updates + SKIPPED) * setup.batch * MAX_STEPS,
        eval_every=0,
        checkpoint_every=0,
        device=setup.device,
        collect_device=setup.device,
    )


def row(setup: Benchmark, kind: Kind, micro_batch: int) -> str:
    folder = saved(setup, kind)
    config = configured(setup, folder, micro_batch)
    memory.peak(setup.device, reset=True)
    sync = pace(config)
    peak = memory.peak(setup.device)
    length = json.loads((folder / "config.json").read_text())["n_action_steps"]
    chunks = setup.epochs * sync.env_steps / length
    told = f"| {kind} | {micro_batch} | {peak:.1f} | {chunks / sync.learn_s:,.1f} "
    told += f"| {sync.update_s - sync.learn_s:.2f} | {sync.learn_s:.2f} | {sync.update_s:.2f} "
    if setup.tiny and kind != "smolvla":
        return told + "| - | - | - |"
    return told + overlap(sync, pace(replace(config, mode="async")))


def overlap(sync: Pace, both: Pace) -> str:
    possible = sync.update_s / max(sync.update_s - sync.learn_s, sync.learn_s)
    gain = sync.update_s / both.update_s
    return f"| {both.update_s:.2f} | {gain:.2f} of {possible:.2f} | {gain / possible:.2f} |"


def main(setup: Benchmark) -> None:
    if setup.tiny:
        setup = replace(setup, lanes=2, batch=4, micro_batches=(4,), updates=2)
    torch.set_num_threads(1)
    overlap_real.memory.say(
        "| policy | micro-batch | peak GB | chunks learnt from/s | C s | T s | sync s/update "
        "| async s/update | gain | share |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for kind in setup.kinds:
        for micro_batch in setup.micro_batches:
            print(row(setup, kind, micro_batch), flush=True)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
