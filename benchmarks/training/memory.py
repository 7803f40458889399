"""What learning from chunks costs a large network: peak memory and chunks a second by micro-batch.

    python benchmarks/training/memory.py --device cuda --precision bf16
    python benchmarks/training/memory.py --tiny

Transformers of the size of SmolVLA (450 million parameters) and of pi0 (3.3 billion), with random
weights, read two cameras of 224 pixels in patches of 14 and a prompt, and answer with a chunk. They
are frozen but for LoRA (rank 16, needs peft) or trained whole. One PPO update of as many chunks as
`--rows` says is run for each micro-batch: preparing, gradients and steps; collecting is no part of
it. On a GPU the peak is what torch allocated there, on a CPU the process's resident memory, which
does not go down again: there the micro-batches should be ordered as they are, smallest first.
"""

from __future__ import annotations

import dataclasses
import resource
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor, nn

from hocket.core.data import Trial
from hocket.core.specs import ArraySpec
from hocket.train.algorithms.ppo import PPO
from hocket.train.algorithms.ranks import Ranks
from hocket.train.algorithms.ratios import RatioRule
from hocket.train.algorithms.stretches import Stretch
from hocket.train.config import PPOConfig, Precision
from hocket.train.networks.contract import Observations, Shapes, trainable_parameters
from hocket.train.networks.lora import add_adapter
from hocket.train.networks.memory import checkpoint_activations
from hocket.train.networks.wrapped import WrappedConfig, wrap

LENGTH, ACTIONS, STATES, WORDS = 50, 7, 8, 48


@dataclass(frozen=True)
class Size:
    """Of a transformer: layers, width, width of the layers between, heads, and image pixels."""

    layers: int
    width: int
    between: int
    heads: int
    pixels: int = 224


SIZES = {
    "smolvla": Size(43, 960, 3520, 15),
    "pi0": Size(45, 2304, 11264, 18),
    "tiny": Size(2, 32, 64, 2, 28),
}


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    device: str = "cpu"
    networks: tuple[Literal["smolvla", "pi0", "tiny"], ...] = ("smolvla", "pi0")
    micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    rows: int = 64
    """Chunks of the update; a step learns from half of them."""
    adapter: str = "lora:r=16"
    """Empty trains all of the network."""
    precision: Precision = "fp32"
    checkpoint_activations: bool = False
    tiny: bool = False
    """A network of nothing, to see that this runs."""


class Block(nn.Module):  # type: ignore[misc]
    """A layer of a transformer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self._heads = size.heads
        self.first, self.second = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.reads = nn.Linear(size.width, 3 * size.width)
        self.writes = nn.Linear(size.width, size.width)
        self.rises, self.falls = (
            nn.Linear(size.width, size.between),
            nn.Linear(size.between, size.width),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        rows, count, width = tokens.shape
        parts = self.reads(self.first(tokens)).view(rows, count, 3, self._heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        tokens = tokens + self.writes(mixed.transpose(1, 2).reshape(rows, count, width))
        return tokens + self.falls(nn.functional.gelu(self.rises(self.second(tokens))))


class Vla(nn.Module):  # type: ignore[misc]
    """Two cameras, a state and a prompt in, a chunk out: one token for each action."""

    critic_features = "last"

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.chunk_length = LENGTH
        self.patches = nn.Conv2d(3, size.width, 14, stride=14)
        self.letters = nn.Embedding(256, size.width)
        self.state = nn.Linear(STATES, size.width)
        self.asked = nn.Parameter(torch.randn(LENGTH, size.width) * 0.02)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.last = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, ACTIONS)

    def forward(self, observation: Observations) -> Tensor:
        cameras = [observation[key] for key in ("observation/image", "observation/wrist_image")]
        seen = [
            self.patches(image.movedim(-1, 1).float() / 255).flatten(2).transpose(1, 2)
            for image in cameras
        ]
        state = observation["observation/state"]
        texts = [list(text.encode()[:WORDS].ljust(WORDS)) for text in observation.prompts]
        words = self.letters(torch.tensor(texts, device=state.device))
        asked = self.asked.expand(len(state), -1, -1)
        tokens = torch.cat([*seen, words, self.state(state)[:, None], asked], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.last(tokens)[:, -LENGTH:])


def shapes(size: Size) -> Shapes:
    image = ArraySpec(shape=(size.pixels, size.pixels, 3), dtype="uint8")
    return Shapes(
        observations={
            "observation/image": image,
            "observation/wrist_image": image,
            "observation/state": ArraySpec(shape=(STATES,), dtype="float32"),
        },
        action_size=ACTIONS,
        tasks=("benchmark",),
        cameras=("observation/image", "observation/wrist_image"),
    )


def stretches(rows: int, size: Size) -> list[Stretch]:
    """Episodes of eight chunks, of random numbers."""
    rng = np.random.default_rng(0)
    made = []
    for index in range(max(1, rows // 8)):
        count = min(8, rows)
        seen: dict[str, Any] = {
            "observation/state": rng.normal(size=(count, STATES)).astype(np.float32),
            "task": np.zeros(count, np.int64),
        }
        for key in ("observation/image", "observation/wrist_image"):
            seen[key] = rng.integers(0, 256, (count, size.pixels, size.pixels, 3), np.uint8)
        made.append(
            Stretch(
                trial=Trial(suite="benchmark", task="benchmark", seed=index),
                attempt=0,
                lane=0,
                observation=seen,
                actions=rng.normal(size=(count, LENGTH, ACTIONS)).astype(np.float32),
                executed=np.full(count, LENGTH),
                rewards=rng.normal(size=(count, LENGTH)),
                log_prob=np.full((count, LENGTH), -5.0, np.float32),
                value=np.zeros(count, np.float32),
                version=np.zeros(count, np.int64),
                chunk=np.arange(count),
                terminated=True,
                truncated=False,
                final=None,
                prompt="put the red block into the drawer",
            )
        )
    return made


def measure(setup: Benchmark, name: str) -> None:
    size = SIZES[name]
    torch.manual_seed(0)
    with torch.device(setup.device):
        network = wrap(Vla(size), shapes(size), WrappedConfig())
    network.to(setup.device).eval()
    if setup.adapter:
        add_adapter(network, setup.adapter)
    if setup.checkpoint_activations:
        checkpoint_activations(network)
    trained = trainable_parameters(network)
    whole = sum(parameter.numel() for parameter in network.parameters())
    learnt = sum(parameter.numel() for parameter in trained.values())
    say(f"\n{name}: {whole / 1e6:,.1f} million parameters, {learnt / 1e6:,.2f} trained\n")
    say("| micro-batch | peak GB | of it before the update | chunks/s |\n|---|---|---|---|")
    optimizer = torch.optim.Adam(trained.values(), lr=1e-5)
    data = stretches(setup.rows, size)
    how = RatioRule(level="action", correction="none")
    for micro_batch in setup.micro_batches:
        config = PPOConfig(
            epochs=1,
            minibatch=max(1, setup.rows // 2),
            micro_batch=micro_batch,
            precision=setup.precision,
            target_kl=None,
            value_only=0,
        )
        learner = PPO(network, optimizer, config, how, Ranks())
        rng = torch.Generator().manual_seed(0)
        before = peak(setup.device, reset=True)
        try:
            learner.update(data, version=0, rng=rng)
            began = time.perf_counter()
            learner.update(data, version=1, rng=rng)
        except torch.OutOfMemoryError:
            say(f"| {micro_batch} | out of memory | {before:.2f} | |")
            continue
        if setup.device != "cpu":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        rows = sum(len(stretch) for stretch in data)
        say(f"| {micro_batch} | {peak(setup.device):.2f} | {before:.2f} | {rows / seconds:,.1f} |")


def peak(device: str, *, reset: bool = False) -> float:
    """The most memory so far in GB; with `reset`, what is in use now."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated() / 1e9


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    asked = tyro.cli(Benchmark)
    if asked.tiny:
        asked = dataclasses.replace(asked, networks=("tiny",), micro_batches=(1, 4), rows=16)
    for one in asked.networks:
        measure(asked, one)
