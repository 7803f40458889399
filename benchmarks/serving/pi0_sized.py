"""A module of pi0's size and shape with random weights: what serving it costs, not what it says.

A vision tower of So400m's size looks at three 224 px images, a 2-billion-parameter decoder reads
them with 48 tokens of text, and an action expert of 300 million denoises 50 actions in 10 steps
over the decoder's keys and values. 2.7 billion parameters in all.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGES = ("observation/image", "observation/wrist_image", "observation/left_wrist_image")
CHUNK, ACTION, STATE, TEXT, STEPS = 50, 32, 32, 48, 10


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight)


class VisionLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        seen = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        )
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Vision(nn.Module):
    def __init__(self, width: int = 1152, layers: int = 27, out: int = 2048) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 14, 14)
        self.place = nn.Parameter(torch.zeros(256, width))
        self.layers = nn.ModuleList(VisionLayer(width, 16, 4304) for _ in range(layers))
        self.project = nn.Linear(width, out)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.project(x)


class DecoderLayer(nn.Module):
    """Gemma's shape: 8 heads of 256 that share one key and value head, a gated MLP."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.q = nn.Linear(width, 2048, bias=False)
        self.kv = nn.Linear(width, 512, bias=False)
        self.out = nn.Linear(2048, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        batch, length, _ = x.shape
        inner = self.norm1(x)
        q = self.q(inner).view(batch, length, 8, 256).transpose(1, 2)
        kv = self.kv(inner)
        whole = kv if before is None else torch.cat([before, kv], 1)
        k, v = (part.unsqueeze(1) for part in whole.chunk(2, -1))
        seen = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, 2048))
        inner = self.norm2(x)
        return x + self.down(F.gelu(self.gate(inner), approximate="tanh") * self.up(inner)), kv


class Pi0Sized(nn.Module):
    """Takes images, a state and noise seeds; gives 50 actions of 32 numbers."""

    chunk_length, action_size = CHUNK, ACTION

    def __init__(self, cameras: tuple[str, ...] = IMAGES) -> None:
        super().__init__()
        self.cameras = cameras
        self.vision = Vision()
        self.words = nn.Parameter(torch.zeros(TEXT, 2048))
        self.vocabulary = nn.Embedding(257_152, 2048)
        self.decoder = nn.ModuleList(DecoderLayer(2048, 16_384) for _ in range(18))
        self.expert = nn.ModuleList(DecoderLayer(1024, 4_096) for _ in range(18))
        self.state_in, self.action_in = nn.Linear(STATE, 1024), nn.Linear(ACTION, 1024)
        self.time_in, self.action_out = nn.Linear(1, 1024), nn.Linear(1024, ACTION)

    def forward(self, observation: dict[str, Tensor], noise_seeds: Tensor) -> Tensor:
        actions = _noise(noise_seeds, self.words.dtype)
        memory = self.prefix(observation)
        for step in range(STEPS):
            actions = self.step(observation, memory, actions, step)
        return actions

    def prefix(self, observation: dict[str, Tensor], text: int = TEXT) -> list[Tensor]:
        """What the decoder remembers of images and `text` tokens, layer by layer."""
        images = torch.stack([observation[key] for key in self.cameras], 1)
        batch = len(images)
        kind = self.words.dtype
        pixels = images.flatten(0, 1).permute(0, 3, 1, 2).to(kind) / 127.5 - 1
        seen = self.vision(pixels).reshape(batch, -1, 2048)
        words = self.words[:1].expand(text, -1) if text > TEXT else self.words[:text]
        x = torch.cat([seen, words.expand(batch, -1, -1)], 1)
        memory = []
        for layer in self.decoder:
            x, kv = layer(x, None)
            memory.append(kv)
        return memory

    def step(
        self, observation: dict[str, Tensor], memory: list[Tensor], actions: Tensor, step: int
    ) -> Tensor:
        """The actions after one more step of the flow."""
        kind, batch = self.words.dtype, len(actions)
        state = self.state_in(observation["observation/state"].to(kind))[:, None]
        moment = torch.full((batch, 1, 1), 1.0 - step / STEPS, dtype=kind, device=actions.device)
        x = torch.cat([state, self.action_in(actions) + self.time_in(moment)], 1)
        for layer, kv in zip(self.expert, memory, strict=True):
            x, _ = layer(x, kv)
        return actions - self.action_out(x[:, 1:]) / STEPS


def _noise(seeds: Tensor, kind: torch.dtype) -> Tensor:
    """Gaussian noise of each row from its seed alone: a hash of seed and place, by Box-Muller."""
    place = torch.arange(CHUNK * ACTION * 2, device=seeds.device, dtype=torch.int64)
    mixed = (seeds[:, None] + place * 0x9E3779B97F4A7C1) * 0xBF58476D1CE4E5B
    mixed = ((mixed ^ (mixed >> 29)) * 0x94D049BB133111E) ^ (mixed >> 31)
    uniform = (mixed & 0xFFFFFF).float().add(0.5) / 0x1000000
    radius, angle = uniform.chunk(2, 1)
    drawn = torch.sqrt(-2 * torch.log(radius)) * torch.cos(2 * torch.pi * angle)
    return drawn.view(-1, CHUNK, ACTION).to(kind)


def make(cameras: tuple[str, ...] = IMAGES) -> Pi0Sized:
    """The module on the GPU in bfloat16; its weights are never read from anywhere."""
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        module = Pi0Sized(cameras)
        torch.set_default_dtype(torch.float32)
    return module
