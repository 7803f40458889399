"""The policy `lerobot:<folder>`: any policy that LeRobot saved, asked in batches.

    hocket eval --env libero:spatial --policy lerobot:checkpoints/act \\
        --env-python venvs/libero/bin/python --policy-python venvs/lerobot/bin/python

Rows that need a chunk go through the policy's own preprocessor, one `predict_action_chunk`, and its
own postprocessor, whole chunks at once. What LeRobot's policies keep for a whole batch (queues of
observations, noise, plans and averages) is kept here for each lane. LeRobot and torch
are imported when the first policy is built, and not by importing this file.
"""

from __future__ import annotations

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
    check_folder,
    find_folder,
    keys_of,
    load,
    spec_of,
)
from hocket.adapters.policies.rtc import RtcConfig
from hocket.core.contracts.policy import DELAY, PREFIX, PREFIX_LENGTH
from hocket.core.data import Actions, Array, Batch, Row
from hocket.errors import ConfigError

if TYPE_CHECKING:
    import torch

_CAMERA = "observation.image"
_SEEDS = 2**63 - 1
_GUIDED = ("smolvla", "pi0", "pi05")
"""Policies that LeRobot samples by a flow, and so can guide."""


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

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ConfigError(f"max_batch must be at least 1, not {self.max_batch}.")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads must be at least 1, not {self.threads}.")


class LeRobot:
    """A LeRobot policy as hocket asks it. Noise is keyed by trial and chunk, whatever the policy
    draws; a history is of consecutive control steps."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        import torch

        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        name = settings.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = torch.device(name)
        self._loaded = load(folder, settings, name)
        self._keys = keys_of(self._loaded.config, settings.keys)
        self.spec = spec_of(self._loaded.config, self._keys, settings)
        # Invariant: the policy's own queues and the noise's keys belong to one call at a time.
        self._lock = threading.Lock()

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

        with KeyedNoise([row.noise_seed for row in rows], self._device):
            seen = self._observation(batch, rows)
            guided: dict[str, Any] = {}
            if committed is not None and committed[1]:
                seen[ACTION] = torch.from_numpy(np.asarray(batch.arrays[PREFIX], np.float32))
            # A prefix is in the env's numbers: as in training, it is normalized, and made relative
            # to the new state where the policy's actions are.
            inputs = self._loaded.preprocess(seen)
            left = inputs.pop(ACTION, None)  # empty, unless there is a prefix
            if committed is not None and committed[1]:
                delay, length = committed
                guided = {
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
            if row.session in averages:
                continue  # padding repeats a row
            if row.session not in self._kept:
                self._kept[row.session] = ACTTemporalEnsembler(
                    config.temporal_ensemble_coeff, config.chunk_size
                )
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
        return torch.cat([self._plan(inputs, i, row) for i, row in enumerate(rows)])

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
        if not Path(argument).expanduser().exists():
            policy.spec = dataclasses.replace(policy.spec, origin=hub.origin(argument, folder))
        return policy


load_policy = _Loader()


def can_be_guided(policy: Any) -> bool:
    """True where the installed LeRobot can do real-time chunking for this policy."""
    return policy.config.type in _GUIDED and hasattr(policy, "init_rtc_processor")


def guide(policy: Any, config: RtcConfig) -> None:
    """Switch on LeRobot's own guidance by committed actions, which takes J for the identity
    (`identity` in `hocket.adapters.policies.rtc`)."""
    from lerobot.policies.rtc.configuration_rtc import RTCConfig

    if config.guidance != "identity":
        raise ConfigError(
            "LeRobot's policies are guided by LeRobot, which knows --rtc.guidance identity alone."
        )
    if config.steps:
        raise ConfigError(
            "LeRobot's policies take their own number of denoising steps: leave --rtc.steps out, "
            "and set num_steps (or num_inference_steps) in the policy's config.json."
        )
    schedules = type(RTCConfig().prefix_attention_schedule)
    policy.config.rtc_config = RTCConfig(
        enabled=True,
        prefix_attention_schedule=schedules[config.schedule.upper()],
        max_guidance_weight=config.weight,
    )
    policy.init_rtc_processor()


def alike(batch: Batch, rows: list[Row]) -> Iterator[tuple[Array, Batch, int, int]]:
    """Rows of one delay and one length of prefix, by which LeRobot guides a whole batch: their
    indices, their batch, and both."""
    told = np.stack([batch.arrays[DELAY], batch.arrays[PREFIX_LENGTH]], 1)
    for delay, length in np.unique(told, axis=0).tolist():
        index = np.flatnonzero((told == (delay, length)).all(1))
        arrays = {key: np.asarray(value)[index] for key, value in batch.arrays.items()}
        yield index, Batch(arrays=arrays, rows=tuple(rows[i] for i in index)), delay, length
