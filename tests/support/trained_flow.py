"""A flow policy for the point env, saved as `hocket train` saves one, without any training."""

from __future__ import annotations

from pathlib import Path

import torch

from hocket.core.specs import ArraySpec
from hocket.train.learner import checkpoint
from hocket.train.networks.building import Description
from hocket.train.networks.contract import Shapes


def save_flow(folder: Path, *, denoising_steps: int, chunk_length: int, replan: int) -> Path:
    """The folder, which `--policy` may name."""
    shapes = Shapes(
        observations={"observation/state": ArraySpec(shape=(2,), dtype="<f4")},
        action_size=2,
        tasks=("make",),
    )
    settings = {"chunk_length": chunk_length, "denoising_steps": denoising_steps, "hidden": [16]}
    described = Description(
        network="hocket.train.networks.actor:FlowActor",
        config=settings,
        shapes=shapes,
        replan=replan,
    )
    with torch.no_grad():
        weights = described.build().state_dict()
    checkpoint.write_folder(
        folder, {checkpoint.WEIGHTS: weights}, {checkpoint.POLICY: described.to_plain()}
    )
    return folder
