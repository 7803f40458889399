"""The policy `lerobot:<folder>`: any policy that LeRobot saved, asked in batches.

    hocket eval --env libero:spatial --policy lerobot:checkpoints/act \\
        --env-python venvs/libero/bin/python --policy-python venvs/lerobot/bin/python

Rows that need a chunk go through the policy's own preprocessor, one `predict_action_chunk`, and its
own postprocessor, whole chunks at once. What LeRobot's policies keep for a whole batch (queues of
observations, noise, plans and averages) is kept here for each lane. LeRobot and torch
are imported when the first policy is built, and not by importing this file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.adapters import hub
from hocket.adapters.policies.devices import keep_threads
from hocket.adapters.policies.lerobot.folder import (
    ACTION,
    IMAGES,
    WHOLE_CHUNKS,
    check_folder,
    find_folder,
    is_on_hub,
    keys_of,
    load,
    spec_of,
)
from hocket.adapters.policies.lerobot.guidance import alike, can_be_guided, guide
from hocket.adapters.policies.rtc import RtcConfig
from hocket.core.contracts.policy import NOISE, PREFIX
from hocket.core.data import Actions, Array, Batch, Row, Trial
from hocket.core.settings import check_at_least
from hocket.errors import ConfigError

if TYPE_CHECKING:
    import torch

_CAMERA = "observation.image"
_SEEDS = 2**63 - 1
_ALONE = ("fastwam",)
"""Policies that infer the rows of a batch one by one themselves, and draw as if each were alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotConfig:
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."""
    threads: int | None = None
    """CPU threads of torch's; None leaves them as they are. Beside busy workers 1 is often best."""
    max_batch: int = 32
    keys: Mapping[str, str] = field(default_factory=dict)
    """Where the env's keys are named otherwise: observation.images.top observation/image. Without
    it observation.images.NAME reads observation/NAME."""
    vlm: str = ""
    """Folder with the backbone's configuration and tokenizer, for policies whose config.json names
    one on the hub (SmolVLA)."""
    base: str = ""
    """Where the policy is that a LoRA fine-tune began with, if not where adapter_config.json says:
    a folder, or an id of the hub."""

    def __post_init__(self) -> None:
        check_at_least(self, max_batch=1, threads=1)


class LeRobot:
    """A LeRobot policy as hocket asks it. Noise is keyed by trial and chunk, whatever the policy
    draws; a history is of consecutive control steps."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        import torch

        from hocket.adapters.policies.lerobot.prefix import FLOWS

        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        name = settings.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = torch.device(name)
        self._loaded = load(folder, settings, name)
        self.base = self._loaded.base
        self._keys = keys_of(self._loaded.config, settings.keys)
        self.spec = spec_of(self._loaded.config, self._keys, settings)
        if self._loaded.config.type in FLOWS:
            noise = (self.spec.chunk_length, int(self._loaded.config.max_action_dim))
            self.spec = dataclasses.replace(self.spec, noise=noise)
        # Invariant: the policy's own queues and the noise's keys belong to one call at a time.
        self._lock = threading.Lock()
        if self._loaded.config.type not in WHOLE_CHUNKS:
            self._learn_length()

    def _learn_length(self) -> None:
        """Policies differ in what they answer of the chunk that is configured: this one is asked
        once, about nothing, and its answer tells."""
        arrays = {}
        for ours, theirs in self._keys.items():
            shape = tuple(self._loaded.config.input_features[theirs].shape)
            if ours in (self.spec.cameras or ()):
                shape = (*shape[1:], shape[0])
            lead = (1, self.spec.history) if self.spec.history > 1 else (1,)
            arrays[ours] = np.zeros((*lead, *shape), np.uint8 if len(shape) == 3 else np.float32)
        trial = Trial(suite="", task="", seed=0)
        row = Row(trial=trial, attempt=0, chunk=0, noise_seed=0, prompt="move", session="length")
        _, length, size = self.infer(Batch(arrays=arrays, rows=(row,))).values.shape
        replan = min(self.spec.replan or length, length)
        self.spec = dataclasses.replace(
            self.spec, chunk_length=length, action_size=size, replan=replan
        )

    @property
    def continuations(self) -> tuple[str, ...]:
        return ("rtc",) if can_be_guided(self._loaded.policy) else ()

    def continue_by(self, method: str, settings: Mapping[str, Any]) -> None:
        """Let LeRobot guide the chunks of batches with committed actions."""
        del method
        guide(self._loaded.policy, RtcConfig(**settings))

    def infer(self, batch: Batch) -> Actions:
        import torch

        keep_threads()
        rows = [*batch.rows, *[batch.rows[-1]] * batch.pad]
        if self._loaded.config.type in _ALONE:
            with self._lock, torch.inference_mode():
                return Actions(np.concatenate([self._answer(*one) for one in singly(batch, rows)]))
        if PREFIX not in batch.arrays:
            with self._lock, torch.inference_mode():
                return Actions(self._answer(batch, rows))
        found: dict[int, Array] = {}
        # LeRobot's guidance takes a gradient, which inference mode has none of.
        with self._lock, torch.no_grad():
            for index, group, delay, length in alike(batch, rows):
                answers = self._answer(group, list(group.rows), (delay, length))
                found.update(zip(index.tolist(), answers, strict=True))
        return Actions(np.stack([found[i] for i in range(len(rows))]))

    def _answer(
        self, batch: Batch, rows: list[Row], committed: tuple[int, int] | None = None
    ) -> Array:
        """The chunks `[B, T, A]` of rows whose prefixes have the same number of committed actions:
        those that are executed before the answer."""
        import torch

        from hocket.adapters.policies.lerobot.noise import KeyedNoise
        from hocket.adapters.policies.lerobot.prefix import FLOWS, shared_prefix, sharing

        encoding = contextlib.ExitStack()
        config = self._loaded.config
        if config.type in FLOWS and committed is None and not config.compile_model:
            firsts = sharing(batch, rows)
            if len(set(firsts)) < len(rows):
                encoding.enter_context(shared_prefix(self._loaded.policy.model, firsts))
        with KeyedNoise([row.noise_seed for row in rows], self._device), encoding:
            seen = self._observation(batch, rows)
            guided: dict[str, Any] = {}
            if NOISE in batch.arrays:
                noise = torch.from_numpy(np.asarray(batch.arrays[NOISE], np.float32))
                guided["noise"] = noise.to(self._device)
            if committed is not None and committed[1]:
                seen[ACTION] = torch.from_numpy(np.asarray(batch.arrays[PREFIX], np.float32))
            # A prefix is in the env's numbers: as in training, it is normalized, and made relative
            # to the new state where the policy's actions are.
            inputs = self._loaded.preprocess(seen)
            left = inputs.pop(ACTION, None)  # empty, unless there is a prefix
            if committed is not None and committed[1]:
                delay, length = committed
                guided |= {
                    "inference_delay": delay,
                    "prev_chunk_left_over": left[:, :length],
                    "execution_horizon": length,
                }
            values = self._loaded.postprocess(self._predict(inputs, rows, **guided))
            return np.array(values.float().cpu().numpy())

    def close(self) -> None:
        """Nothing is held that must be given back."""

    def _observation(self, batch: Batch, rows: list[Row]) -> dict[str, Any]:
        """The batch under LeRobot's keys; the steps of a history stand one after another as
        rows."""
        import torch

        found: dict[str, Any] = {}
        for ours, theirs in self._keys.items():
            array = np.asarray(batch.arrays[ours])
            if self.spec.history > 1:
                array = array.reshape(-1, *array.shape[2:])
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            if theirs.startswith("observation.image"):
                tensor = tensor.permute(0, 3, 1, 2).contiguous().to(torch.float32) / 255
            else:
                tensor = tensor.to(torch.float32)
            found[theirs] = tensor
        found["task"] = [row.prompt for row in rows for _ in range(self.spec.history)]
        return found

    def _predict(self, inputs: dict[str, Any], rows: list[Row], **guided: Any) -> torch.Tensor:
        """One chunk for each row, normalized; `guided` is what LeRobot is told of a prefix."""
        policy: Any = self._loaded.policy
        policy.reset()
        # Other policies have no queues, or one of actions alone.
        if any(key != ACTION for key in getattr(policy, "_queues", None) or {}):
            inputs = self._queued(inputs, len(rows))
        chunk: torch.Tensor = policy.predict_action_chunk(inputs, **guided)
        return chunk

    def _queued(self, inputs: dict[str, Any], size: int) -> dict[str, Any]:
        """Lay each lane's history into the queues that the policy reads, oldest first."""
        import torch

        policy: Any = self._loaded.policy
        inputs = dict(inputs)
        if cameras := list(self._loaded.config.image_features):
            inputs[IMAGES] = torch.stack([inputs[key] for key in cameras], dim=1)
        for key, value in inputs.items():
            if not isinstance(value, torch.Tensor) or len(value) != size * self.spec.history:
                continue
            steps = value.reshape(size, self.spec.history, *value.shape[1:])
            if key in policy._queues:
                policy._queues[key] = deque(steps.unbind(1), maxlen=self.spec.history)
            else:  # the policy reads the last step alone, as it does with the prompt
                inputs[key] = steps[:, -1]
        return inputs


class SingleActions(LeRobot):
    """A policy that knows no chunks (SAC): asked at every step, for one action."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        # LeRobot's SAC appends the gripper's choice to what its configuration calls the action.
        extra = int(getattr(self._loaded.config, "num_discrete_actions", None) is not None)
        size = None if self.spec.action_size is None else self.spec.action_size + extra
        self.spec = dataclasses.replace(self.spec, chunk_length=1, replan=1, action_size=size)

    def _predict(self, inputs: dict[str, Any], rows: list[Row], **guided: Any) -> torch.Tensor:
        del rows, guided
        actions: torch.Tensor = self._loaded.policy.select_action(inputs)
        return actions[:, None]


class LeRobotSessions(LeRobot):
    """A policy that carries state from call to call. Each attempt has its own, forgotten when the
    attempt ends or begins again; all share the weights."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        self._kept: dict[str, Any] = {}

    def begin_session(self, row: Row) -> None:
        self.end_session(row.session)

    def end_session(self, session: str) -> None:
        with self._lock:
            self._kept.pop(session, None)


class EnsembledACT(LeRobotSessions):
    """ACT with temporal ensembling: asked at every step, with an average for each attempt."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        self.spec = dataclasses.replace(self.spec, chunk_length=1, replan=1)

    def _predict(self, inputs: dict[str, Any], rows: list[Row], **guided: Any) -> torch.Tensor:
        """Each attempt's average, moved on by one step: `[B, 1, A]`."""
        import torch
        from lerobot.policies.act.modeling_act import ACTTemporalEnsembler

        config = self._loaded.config
        chunk = super()._predict(inputs, rows, **guided)
        averages: dict[str, torch.Tensor] = {}
        for i, row in enumerate(rows):
            if row.session not in self._kept:
                self._kept[row.session] = ACTTemporalEnsembler(
                    config.temporal_ensemble_coeff, config.chunk_size
                )
            if row.session not in averages:  # padding repeats a row
                averages[row.session] = self._kept[row.session].update(chunk[i : i + 1])
        return torch.cat([averages[row.session] for row in rows])[:, None]


class PlanningTDMPC(LeRobotSessions):
    """TD-MPC, whose plan of one call is where the next begins. Its planner keeps one plan for a
    whole batch and draws its samples across it, so that rows are planned one after another."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        if others := set(self._loaded.config.image_features) - {_CAMERA}:
            raise ConfigError(
                f"{folder}: LeRobot's TD-MPC finds its camera by the name {_CAMERA} alone when it "
                f"acts; this policy's is {min(others)}. Rename it in config.json and in the "
                f"processors."
            )

    def _predict(self, inputs: dict[str, Any], rows: list[Row], **guided: Any) -> torch.Tensor:
        import torch

        del guided
        plans: dict[str, torch.Tensor] = {}
        for i, row in enumerate(rows):
            if row.session not in plans:  # padding repeats a row
                plans[row.session] = self._plan(inputs, i, row)
        return torch.cat([plans[row.session] for row in rows])

    def _plan(self, inputs: dict[str, Any], i: int, row: Row) -> torch.Tensor:
        """Row i's actions `[1, T, A]`; its plan is kept."""
        from hocket.adapters.policies.lerobot.noise import KeyedNoise

        policy: Any = self._loaded.policy
        seen = {
            key: value[i : i + 1] for key, value in inputs.items() if key.startswith("observation.")
        }
        policy.reset()
        policy._prev_mean = self._kept.get(row.session)
        for key in policy._queues:
            if key != ACTION:
                policy._queues[key] = deque([seen[key]], maxlen=1)
        with KeyedNoise([row.noise_seed], self._device, shared=~row.noise_seed & _SEEDS):
            actions: torch.Tensor = policy.predict_action_chunk(seen).transpose(0, 1)
        self._kept[row.session] = policy._prev_mean
        repeats = int(policy.config.n_action_repeats)
        if repeats > 1:
            return actions[:, :1].repeat(1, repeats, 1)
        return actions[:, : policy.config.n_action_steps]


class _Loader:
    """The adapter behind `lerobot:<folder>`."""

    Config = LeRobotConfig

    def require_data(self, argument: str) -> None:
        """Raise where the folder is not there or lacks something, before anything is started. An id
        of the hub is left to whoever loads it."""
        if not is_on_hub(argument):
            check_folder(find_folder(argument))

    def module(self, argument: str, config: LeRobotConfig) -> torch.nn.Module:
        """The policy as a module of chunks, for training."""
        from hocket.adapters.policies.lerobot.module import make_module

        folder = find_folder(argument)
        return make_module(check_folder(folder)["type"], folder, config)

    def __call__(self, argument: str, config: LeRobotConfig) -> LeRobot:
        folder = find_folder(argument)
        plain = check_folder(folder)
        kinds = {"tdmpc": PlanningTDMPC, "sac": SingleActions, "gaussian_actor": SingleActions}
        kind = kinds.get(plain["type"], LeRobot)
        if plain.get("temporal_ensemble_coeff") is not None:
            kind = EnsembledACT
        policy = kind(folder, config)
        origin = {}
        if not Path(argument).expanduser().exists():
            origin = hub.origin(argument, folder)
        if policy.base is not None:
            name, base = policy.base
            about = hub.origin(name, base) if is_on_hub(name) else hub.digests(base)
            origin |= {"base": name, **{f"base/{key}": value for key, value in about.items()}}
        policy.spec = dataclasses.replace(policy.spec, origin=origin)
        return policy


load_policy = _Loader()


def singly(batch: Batch, rows: list[Row]) -> Iterator[tuple[Batch, list[Row]]]:
    """Each row as a batch of its own."""
    for i, row in enumerate(rows):
        arrays = {key: np.asarray(value)[i : i + 1] for key, value in batch.arrays.items()}
        yield Batch(arrays=arrays, rows=(row,)), [row]
