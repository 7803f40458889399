"""A policy made of a torch module that returns chunks.

    policy = TorchPolicy(module, chunk_length=16, action_size=7, device="cuda")

The module is called as `module(observation)` with a dict of tensors `[B, ...]` on its device, keys
as in the batch, and returns a tensor `[B, T, A]`. A module whose `forward` has a parameter
`noise_seeds` gets int64 `[B]`: the seeds of each row's noise. torch is imported when
the first policy is built, and not by importing this file.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hocket.adapters.policies.devices import (
    Graphs,
    HostBuffer,
    find_device,
    find_dtype,
    keep_threads,
    on_device,
    own_dtype,
)
from hocket.adapters.policies.rtc import KEYS, Continuation, continuations_of, row_noise
from hocket.core import plugins
from hocket.core.contracts.policy import PREFIX
from hocket.core.data import Actions, Batch
from hocket.core.settings import json_object
from hocket.core.specs import PolicySpec
from hocket.errors import ChunkShapeError, ConfigError, MissingExtraError

if TYPE_CHECKING:
    import torch


_CLOSE_S = 2.0
"""Seconds that closing waits for a forward that is under way."""


class TorchPolicy:
    """A policy made of an `nn.Module`, which it puts on `device` in evaluation mode.

    `dtype` is what floating-point observations (and the module) become; None takes the module's
    own. Integers and images stay as they are. With `fixed_shapes` a batch is padded to the next
    power of two, or to the next of the sizes given, so that compiled modules and cuDNN meet few
    shapes; with `graphs` each such shape is replayed as one CUDA graph. `threads` sets torch's CPU
    threads for this process. `spec` takes further fields of PolicySpec, such as `action_size` and
    `inputs`; a module that draws noise of its own must say `keyed_noise=False`.
    """

    reads_device_arrays = True

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        chunk_length: int,
        device: str = "cpu",
        dtype: str | None = None,
        fixed_shapes: bool | Sequence[int] = False,
        graphs: bool = False,
        max_batch: int = 64,
        threads: int | None = None,
        **spec: Any,
    ) -> None:
        import torch

        self.spec = PolicySpec(
            chunk_length=chunk_length,
            max_batch=max_batch,
            batch_sizes=_sizes(fixed_shapes, max_batch),
            **spec,
        )
        if threads is not None:
            torch.set_num_threads(threads)
        self._device = find_device(device)
        self._dtype = None if dtype is None else find_dtype(dtype)
        self._module = module.to(device=self._device, dtype=self._dtype).eval()
        self._float = self._dtype or own_dtype(self._module)
        self._call: Any = self._module
        if graphs:
            if self._device.type != "cuda" or not self.spec.batch_sizes:
                raise ConfigError("graphs=True needs device='cuda' and fixed_shapes.")
            self._call = Graphs(self._module)
        self._continuation: Continuation | None = None
        self._takes_seeds = "noise_seeds" in inspect.signature(self._module.forward).parameters
        self._buffers: dict[str, HostBuffer] = {}
        # Invariant: the buffers hold the inputs of one batch only, until its forward is done.
        self._lock = threading.Lock()

    @property
    def continuations(self) -> tuple[str, ...]:
        return continuations_of(self._module)

    def continue_by(self, method: str, settings: Mapping[str, Any]) -> None:
        """Sample chunks from the module's flow, with noise from each row's seed, so that they
        continue the committed actions. Batches without any are answered by `forward`."""
        self._continuation = Continuation(self._module, method, settings)

    def infer(self, batch: Batch) -> Actions:
        import torch

        keep_threads()
        size = next((fixed for fixed in self.spec.batch_sizes if fixed >= batch.size), batch.size)
        continuation = self._continuation if PREFIX in batch.arrays else None
        # A backward pass cannot go through tensors of inference mode.
        quietly = torch.inference_mode() if continuation is None else torch.no_grad()
        with self._lock, quietly, on_device(self._device):
            tensors = {
                key: self._tensor(key, array, size)
                for key, array in batch.arrays.items()
                if self.spec.inputs is None or key in self.spec.inputs or key in KEYS
            }
            if continuation is not None:
                shape = tuple(tensors[PREFIX].shape[1:])
                noise = torch.from_numpy(row_noise(batch.rows, size, shape))
                noise = noise.to(self._device, self._float)
                answer = continuation.sample(tensors, noise)
            elif self._takes_seeds:
                seeds = [row.noise_seed for row in batch.rows]
                seeds += seeds[-1:] * (size - len(seeds))
                drawn = torch.tensor(seeds, dtype=torch.int64, device=self._device)
                answer = self._call(tensors, noise_seeds=drawn)
            else:
                answer = self._call(tensors)
            if not isinstance(answer, torch.Tensor) or answer.ndim != 3 or len(answer) != size:
                came = tuple(answer.shape) if hasattr(answer, "shape") else type(answer).__name__
                raise ChunkShapeError(
                    f"Module {type(self._module).__name__} returned {came} for {size} rows; its "
                    f"forward must return one tensor [B, T, A]."
                )
            # A copy: what a module returns may be its own buffer, or its input.
            return Actions(np.array(answer[: batch.size].float().cpu().numpy()))

    def replicas(self, devices: Sequence[str]) -> Sequence[TorchPolicy]:
        """One policy for each device: this one where it stands already, copies elsewhere."""
        made: list[TorchPolicy] = []
        for device in devices:
            if find_device(device) == self._device and self not in made:
                made.append(self)
            else:
                made.append(self._copy(device))
        return made

    def close(self) -> None:
        """Free the buffers; the module stays its owner's. A forward that never returns keeps
        them."""
        if self._lock.acquire(timeout=_CLOSE_S):
            self._buffers.clear()
            self._lock.release()

    def _copy(self, device: str) -> TorchPolicy:
        spec = {one.name: getattr(self.spec, one.name) for one in dataclasses.fields(self.spec)}
        fixed = spec.pop("batch_sizes")
        twin = TorchPolicy(
            copy.deepcopy(self._module),
            **spec,
            device=device,
            fixed_shapes=fixed,
            graphs=isinstance(self._call, Graphs),
        )
        twin._float = self._float
        if self._continuation is not None:
            twin.continue_by(self._continuation.method, self._continuation.settings)
        return twin

    def _tensor(self, key: str, array: Any, size: int) -> torch.Tensor:
        import torch

        if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"):
            array = torch.from_dlpack(array)
        if isinstance(array, torch.Tensor):
            if len(array) < size:
                last = array[-1:].expand(size - len(array), *array.shape[1:])
                array = torch.cat([array, last])
            kind = self._float if array.is_floating_point() else array.dtype
            return array.to(self._device, kind)
        buffer = self._buffers.get(key)
        if buffer is None or not buffer.fits(array, size):
            rows = max(size, self.spec.max_batch)
            buffer = self._buffers[key] = HostBuffer(array, rows, self._device, self._float)
        return buffer.fill(array, size)


def _sizes(fixed: bool | Sequence[int], max_batch: int) -> tuple[int, ...]:  # noqa: FBT001
    if fixed is False:
        return ()
    if fixed is True:
        powers = [1 << power for power in range(max_batch.bit_length())]
        return tuple(sorted({*powers, max_batch}))
    sizes = tuple(sorted(fixed))
    if sizes and (sizes[0] < 1 or sizes[-1] < max_batch):
        raise ConfigError(
            f"fixed_shapes {sizes} must be 1 or more, the largest at least max_batch {max_batch}."
        )
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchConfig:
    plain_texts: ClassVar[tuple[str, ...]] = ("cameras", "dtype")
    weights: str = ""
    """A .safetensors file with the module's parameters; none leaves them as built."""
    arguments: str = ""
    """Keyword arguments for the class or factory, as a JSON object."""
    chunk_length: int = 0
    """Actions in a chunk; 0 takes the module's own `chunk_length`, else leaves it to the answer."""
    action_size: int | None = None
    """Numbers in an action; None takes the module's own `action_size`, else adapts to the env."""
    cameras: tuple[str, ...] | None = None
    """Image keys to render for it; None takes the module's own `cameras`, else all there are."""
    history: int = 1
    control_rate: float | None = None
    device: str = "cpu"
    dtype: str | None = None
    """float32, bfloat16 ...; None leaves the module as built."""
    fixed_shapes: bool = False
    """Pad batches to powers of two."""
    graphs: bool = False
    """Replay each padded shape as one CUDA graph: much faster at small batches."""
    max_batch: int = 64
    threads: int | None = None
    """CPU threads of torch's; None leaves them as they are."""
    keyed_noise: bool = True
    """False where the module draws noise that is not made from noise_seeds."""
    replan: int | None = None


class _Loader:
    """The adapter behind `torch:package.module:attr`: a module class, a factory, or a module."""

    Config = TorchConfig

    def module(self, argument: str, config: TorchConfig) -> torch.nn.Module:
        """The module with its weights and what the configuration says of it, for training."""
        module = _module(argument, config)
        for name, unsaid in (("chunk_length", 0), ("history", 1), ("cameras", None)):
            if getattr(config, name) != unsaid:
                setattr(module, name, getattr(config, name))
        return module

    def __call__(self, argument: str, config: TorchConfig) -> TorchPolicy:
        module = _module(argument, config)
        cameras = getattr(module, "cameras", None) if config.cameras is None else config.cameras
        return TorchPolicy(
            module,
            chunk_length=config.chunk_length or getattr(module, "chunk_length", None) or 0,
            action_size=config.action_size or getattr(module, "action_size", None),
            inputs=getattr(module, "inputs", None),
            device=config.device,
            dtype=config.dtype,
            graphs=config.graphs,
            fixed_shapes=config.fixed_shapes or config.graphs,
            max_batch=config.max_batch,
            threads=config.threads,
            cameras=cameras,
            history=config.history,
            control_rate=config.control_rate,
            keyed_noise=config.keyed_noise,
            replan=config.replan,
        )


load = _Loader()


def _module(argument: str, config: TorchConfig) -> torch.nn.Module:
    """The module that a name means, with its weights."""
    import torch

    if ":" not in argument:
        raise ConfigError(
            f"'torch:{argument}' names no module. Write torch:package.module:attr, where attr is "
            f"an nn.Module class, a function that makes one, or a module."
        )
    found: Any = plugins.find("policies", argument).build
    arguments = json_object("arguments", config.arguments or "{}")
    if isinstance(found, torch.nn.Module):
        if arguments:
            raise ConfigError(f"{argument!r} is built already; it takes no arguments.")
        module = found
    else:
        module = found(**arguments)
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"{argument!r} made a {type(module).__name__}, not an nn.Module.")
    if config.weights:
        _load_file(module, config.weights)
    return module


def _load_file(module: torch.nn.Module, name: str) -> None:
    path = Path(name).expanduser()
    if path.suffix != ".safetensors":
        raise ConfigError(
            f"Weights {name!r} are not .safetensors. Other checkpoints are pickles, which can run "
            f"code when they are read. Convert once, where you trust the file: "
            f"safetensors.torch.save_file(torch.load(...), 'weights.safetensors')."
        )
    given = _read_file(path)
    try:
        result = module.load_state_dict(given, strict=False)
    except RuntimeError as exc:
        raise ConfigError(f"Weights {name!r} do not fit the module: {exc}") from exc
    # Parameters that share memory are stored once, under one of their names.
    state = module.state_dict()
    filled = {tensor.data_ptr() for key, tensor in state.items() if key in given}
    missing = [key for key in result.missing_keys if state[key].data_ptr() not in filled]
    wrong = [*(f"lacks {key}" for key in missing), *(f"has {k}" for k in result.unexpected_keys)]
    if wrong:
        raise ConfigError(
            f"Weights {name!r} do not fit the module: the file {', '.join(wrong[:4])} "
            f"({len(wrong)} in all)."
        )


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a .safetensors file by name, mapped from the disk and not copied."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as exc:
        raise MissingExtraError(
            f"Weights {str(path)!r} need the package 'safetensors', which is not installed. Run: "
            f"{sys.executable} -m pip install 'hocket[torch]'"
        ) from exc
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except OSError as exc:
        raise ConfigError(f"Weights {str(path)!r} cannot be read: {exc}") from exc
    except SafetensorError as exc:
        raise ConfigError(f"{str(path)!r} is no sound .safetensors file: {exc}") from exc
    return tensors
