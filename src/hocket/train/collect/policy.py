"""The policy that collects: it samples chunks with the newest published weights, and says how
likely they were.

It has a network of its own, which only the thread that infers touches; frozen parts may be shared
with a learner. Weights change at the start of a call, never within one. Rows that belong together
(an evaluation, a pinned group) can be held to the weights that the first of them saw.
"""

from __future__ import annotations

import dataclasses
import math
import queue
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hocket.adapters.policies.devices import keep_threads
from hocket.core.contracts.policy import NOISE, Binds, Policy
from hocket.core.data import Actions, Array, Batch, Row, Trial, noise_seed
from hocket.core.specs import ArraySpec, EnvSpec, PolicySpec
from hocket.engine.chunk_rules import check_answer
from hocket.errors import PolicyError, SpecMismatchError
from hocket.train.algorithms.gradients import autocast
from hocket.train.config import Precision
from hocket.train.learner.weights import ReceivedWeights, WeightBlock, packed_starts
from hocket.train.networks.contract import (
    BASE,
    PROMPT,
    TASK,
    Acted,
    Observations,
    Shapes,
    Tensors,
    Trainable,
    history_of,
    published_tensors,
)
from hocket.train.networks.memory import twin

SAMPLE, LOG_PROB, VALUE, VERSION = "sample", "log_prob", "value", "version"
"""Keys of what an answer holds beside the actions to execute."""
_DRAWN = "noise for sampling"
"""Key under which the noise travels to the device, beside the observations."""
_MOST_ROWS = 64
"""Rows of a batch where `limit` sets no other number."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldNetwork:
    """A network whose weights stay as they are for as long as anyone holds it."""

    version: int
    network: Trainable


class CollectingPolicy:
    """A policy for the engine, around a network."""

    def __init__(
        self,
        network: Any,
        shapes: Shapes,
        *,
        evaluated_as: Callable[[Trial], Trial | None],
        held_by: Callable[[Trial], Hashable | None] = lambda _: None,
        replan: int | None = None,
        device: str = "cpu",
        base: Policy | None = None,
        precision: Precision = "fp32",
    ) -> None:
        """`evaluated_as` tells the trial whose noise one is evaluated with; None of one that is
        sampled. `held_by` names what holds a trial's rows to one version of the weights; with None
        they follow the newest."""
        self._shapes = shapes
        self.block: WeightBlock | ReceivedWeights | None = None
        """Where new weights appear; while it is None the network stays as it was given."""
        self._evaluated_as, self._held_by = evaluated_as, held_by
        self._device = torch.device(device)
        self._precision: Precision = precision
        self._live = HeldNetwork(-1, network.to(self._device).eval())
        self._staging = Staging(self._device)
        self._held: dict[Hashable, HeldNetwork] = {}
        self._released: queue.SimpleQueue[Hashable] = queue.SimpleQueue()
        self._base = base
        self._steers = base is not None and getattr(network, "chooses_noise", False)
        """True if the network's actions are the noise that the base's chunks flow from."""
        self.texts: list[str] = []
        """Every prompt that a row had, in the order of their coming. It only grows."""
        self._text_index: dict[str, int] = {}
        self.spec = _spec_of(network, shapes, replan=replan, base=base)

    def bind(self, spec: EnvSpec) -> None:
        if spec.action.kind != "box":
            raise SpecMismatchError(
                f"Task {spec.task.name!r} has discrete actions; training is of continuous ones."
            )
        if spec.task.name not in self._shapes.tasks:
            raise SpecMismatchError(
                f"These weights have one network for each of {', '.join(self._shapes.tasks)}, and "
                f"none for {spec.task.name!r}. To go on from them on another task, give them to "
                f"`hocket train`."
            )
        base: object = self._base
        if isinstance(base, Binds):
            base.bind(spec)

    def limit(self, max_batch: int) -> None:
        self.spec = dataclasses.replace(self.spec, max_batch=max_batch)

    def infer(self, batch: Batch) -> Actions:
        """Make chunks for a batch, every row with the weights that it is held to."""
        self._refresh()
        snapshots = [self._snapshot(row) for row in batch.rows]
        wanted = [
            (snapshot, self._evaluated_as(row.trial) is not None)
            for snapshot, row in zip(snapshots, batch.rows, strict=True)
        ]
        arrays = self._arrays(batch)
        merged: dict[str, Array] = {}
        for snapshot, deterministic in dict.fromkeys(wanted):
            # Always the whole batch, so that a row's arithmetic does not depend on the others.
            answer = self._act(snapshot, arrays, batch, deterministic=deterministic)
            rows = [i for i, one in enumerate(wanted) if one == (snapshot, deterministic)]
            for key, values in answer.items():
                if key not in merged:
                    merged[key] = values
                merged[key][rows] = values[rows]
        if not np.isfinite(merged[SAMPLE]).all():
            # Evaluated, it fails; but nothing can be learnt from such a failure.
            raise PolicyError(
                "The network answers with NaN or infinite actions. Look at the losses, lower the "
                "learning rate, or look at the observations with `hocket check`."
            )
        for key in (PROMPT, BASE):
            if key in arrays:
                merged[key] = arrays[key]
        chunks = merged[SAMPLE]
        if self._steers:
            told = {**batch.arrays, NOISE: chunks.astype(np.float32)}
            chunks = self._ask_base(dataclasses.replace(batch, arrays=told))
        return Actions(self._clipped(batch, chunks), merged, version=max(0, self._live.version))

    def close(self) -> None:
        if self._base is not None:
            self._base.close()

    def release(self, holder: Hashable) -> None:
        """Let go of the weights that this holds. Any thread may call it."""
        self._released.put(holder)

    def held_weights(self, holder: Hashable) -> tuple[int, dict[str, torch.Tensor]]:
        """The version and the weights that this holds, without what is frozen, until released."""
        snapshot = self._held[holder]
        return snapshot.version, published_tensors(snapshot.network)

    def _refresh(self) -> None:
        while not self._released.empty():
            self._held.pop(self._released.get(), None)
        if self.block is None or self.block.version == self._live.version:
            return
        network = self._live.network
        if any(held is self._live for held in self._held.values()):
            network = twin(network, self._device)
        version = self.block.read(published_tensors(network))
        self._live = HeldNetwork(version, network)

    def _snapshot(self, row: Row) -> HeldNetwork:
        holder = self._held_by(row.trial)
        if holder is None:
            return self._live
        return self._held.setdefault(holder, self._live)

    def _arrays(self, batch: Batch) -> dict[str, Array]:
        arrays = dict(batch.arrays)
        tasks = [self._shapes.tasks.index(row.trial.task) for row in batch.rows]
        arrays[TASK] = np.array(tasks + tasks[-1:] * batch.pad, np.int64)
        prompts = [self._index(row.prompt) for row in batch.rows]
        arrays[PROMPT] = np.array(prompts + prompts[-1:] * batch.pad, np.int64)
        if self._base is not None and not self._steers:
            arrays[BASE] = self._ask_base(batch)
        return arrays

    def _ask_base(self, batch: Batch) -> Array:
        assert self._base is not None
        answer = check_answer(
            self._base.infer(batch),
            rows=batch.size,
            size=batch.size,
            action_size=self._base.spec.action_size if self._steers else self._shapes.action_size,
            chunk_length=self.spec.chunk_length,
            name="base",
        )
        return np.array(answer.values, np.float32)

    def _index(self, prompt: str) -> int:
        index = self._text_index.setdefault(prompt, len(self.texts))
        if index == len(self.texts):
            self.texts.append(prompt)
        return index

    def _act(
        self, snapshot: HeldNetwork, arrays: dict[str, Array], batch: Batch, *, deterministic: bool
    ) -> dict[str, Array]:
        network: Trainable = snapshot.network
        noise = np.zeros((batch.size, network.noise_size), np.float32)
        for i, row in enumerate(batch.rows):
            evaluated = self._evaluated_as(row.trial) if deterministic else None
            key = row.noise_seed if evaluated is None else noise_seed(evaluated, row.chunk)
            bits = np.random.Philox(key=key)
            noise[i] = np.random.Generator(bits).standard_normal(network.noise_size, np.float32)
        if NOISE in arrays:
            given = arrays[NOISE].reshape(batch.size, -1)
            noise[:, : given.shape[1]] = given
        keep_threads()
        with torch.no_grad():
            seen_arrays = {key: array for key, array in arrays.items() if key != NOISE}
            observation = self._staging.upload({**seen_arrays, _DRAWN: noise})
            drawn = observation.pop(_DRAWN)
            seen = Observations(observation, self.texts)
            with autocast(self._device, self._precision):
                acted: Acted = network.act(seen, drawn, deterministic=deterministic)
            answer = {SAMPLE: acted.actions, LOG_PROB: acted.log_prob, VALUE: acted.value}
            answer.update(acted.extras)
            # numpy has no numbers of half the bits.
            found = self._staging.download(
                {k: t.float() if t.dtype == torch.bfloat16 else t for k, t in answer.items()}
            )
        found[VERSION] = np.full(batch.size, snapshot.version, np.int64)
        return found

    def _clipped(self, batch: Batch, sample: Array) -> Array:
        clipped = np.array(sample)
        for i, row in enumerate(batch.rows):
            if row.env is not None:
                action = row.env.action
                clipped[i] = np.clip(sample[i], action.low.ravel(), action.high.ravel())
        return clipped


def _spec_of(
    network: Trainable, shapes: Shapes, *, replan: int | None, base: Policy | None
) -> PolicySpec:
    """What the network needs of the env, and what its base needs where there is one."""
    inputs: dict[str, ArraySpec] | None = {
        key: shapes.observations[key] for key in network.inputs if key != BASE
    }
    cameras: tuple[str, ...] | None = tuple(k for k in network.inputs if k in shapes.cameras)
    replan = replan or getattr(network, "replan", None)
    if base is not None:
        if base.spec.history > 1:
            raise SpecMismatchError(
                "The policy reads a history of observations; beside such policies nothing can "
                "be trained."
            )
        inputs = None
        known = base.spec.cameras
        cameras = None if known is None else tuple(dict.fromkeys((*known, *(cameras or ()))))
        replan = replan or base.spec.replan
    return PolicySpec(
        chunk_length=network.chunk_length,
        action_size=shapes.action_size if base is None else base.spec.action_size,
        inputs=inputs,
        cameras=cameras,
        history=history_of(network),
        max_batch=_MOST_ROWS,
        replan=replan,
        noise=(network.chunk_length, size) if (size := getattr(network, "flow_size", 0)) else (),
    )


class Staging:
    """Memory through which arrays reach a device and come back, each way in one copy.

    Where the device is a GPU, every copy of its own waits for its turn there, and a learner on the
    same GPU makes turns long. So arrays travel packed in page-locked memory, which the GPU reads
    without the driver's help, and the host waits once, for the answer. Uploaded arrays are valid
    until the next upload, and one upload is followed by one download before the next: the host has
    then waited for both.
    """

    def __init__(self, device: torch.device, *, is_packed: bool | None = None) -> None:
        """Arrays are packed where the device is a GPU, or wherever that is asked for."""
        self._device = device
        self._is_gpu = device.type == "cuda"
        self._is_packed = self._is_gpu if is_packed is None else is_packed
        self._up = self._page_locked(0)
        self._down = self._page_locked(0)

    def upload(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        if not self._is_packed:
            return {key: torch.from_numpy(a).to(self._device) for key, a in arrays.items()}
        starts, size = packed_starts({key: array.nbytes for key, array in arrays.items()})
        if len(self._up) < size:
            self._up = self._page_locked(size)
        packed = self._up.numpy()
        for key, array in arrays.items():
            part = packed[starts[key] : starts[key] + array.nbytes]
            part.view(array.dtype).reshape(array.shape)[...] = array
        there = self._up[:size].to(self._device, non_blocking=True)
        return {
            key: there[starts[key] : starts[key] + array.nbytes]
            .view(torch.from_numpy(np.empty(0, array.dtype)).dtype)
            .view(array.shape)
            for key, array in arrays.items()
        }

    def download(self, tensors: Tensors) -> dict[str, Array]:
        """Wait for the device; return the tensors as arrays of the caller's own."""
        if not self._is_packed:
            return {key: tensor.cpu().numpy() for key, tensor in tensors.items()}
        # The widest first: with no gaps between them, all lie at multiples of their width.
        order = sorted(tensors, key=lambda key: -tensors[key].element_size())
        flat = torch.cat([tensors[key].contiguous().view(-1).view(torch.uint8) for key in order])
        if len(self._down) < len(flat):
            self._down = self._page_locked(len(flat))
        self._down[: len(flat)].copy_(flat, non_blocking=True)
        if self._is_gpu:
            torch.cuda.current_stream(self._device).synchronize()
        packed = self._down[: len(flat)].numpy().copy()
        arrays, start = {}, 0
        for key in order:
            like = torch.empty(0, dtype=tensors[key].dtype).numpy().dtype
            size = math.prod(tensors[key].shape) * like.itemsize
            arrays[key] = packed[start : start + size].view(like).reshape(tensors[key].shape)
            start += size
        return {key: arrays[key] for key in tensors}

    def _page_locked(self, size: int) -> torch.Tensor:
        # Twice what is needed now: batches grow.
        return torch.empty(2 * size, dtype=torch.uint8, pin_memory=self._is_gpu and size > 0)
