"""Envs that play the variants of LIBERO-Plus, or what they were made of, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from hocket.adapters.envs.libero import CAMERAS, LiberoConfig, language
from hocket.adapters.envs.libero.data import find_data, read_pruned_init
from hocket.adapters.envs.libero.plus import LiberoPlusConfig, Variant
from hocket.core.data import Array
from hocket.errors import EnvError
from hocket.workers.env import gl

_KEYS = ("observation/image", "observation/wrist_image")
_ACTION_SIZE = 7
_STAND_STILL = (*[0.0] * 6, -1.0)


class _Variants(gymnasium.Env[Any, Any]):
    """Trial k is the k-th variant, from the first start state of its task."""

    def __init__(self, variants: Sequence[Variant], config: LiberoPlusConfig) -> None:
        self._variants, self._config = variants, config
        self._env: Any = None
        self._now = variants[0]
        self.action_space = spaces.Box(-1.0, 1.0, (_ACTION_SIZE,), np.float32)

    def _choose(self, seed: int | None) -> Variant:
        if not 0 <= (seed or 0) < len(self._variants):
            raise EnvError(f"There are {len(self._variants)} variants, and no {seed}.")
        self._now = self._variants[seed or 0]
        return self._now

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()


class CleanEnv(_Variants):
    """Plays LIBERO's own tasks, each as the variant of the trial would be without its change."""

    def __init__(self, variants: Sequence[Variant], config: LiberoPlusConfig) -> None:
        super().__init__(variants, config)
        own = {one.name: getattr(config, one.name) for one in fields(LiberoConfig)}
        self._plain = LiberoConfig(**own)
        self._base = ""
        self.notes: tuple[str, ...] = ()
        self.facts: dict[str, str] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        from hocket.adapters.envs.libero.env import LiberoEnv

        variant = self._choose(seed)
        if self._env is None or self._base != variant.base:
            self.close()
            self._env, self._base = (
                LiberoEnv(variant.suite, variant.base, self._plain),
                variant.base,
            )
        self._env.reset(seed=0)
        return self.observe(), {}

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = self.advance(action)
        return self.observe(), reward, terminated, truncated, info

    def advance(self, action: Array) -> tuple[float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = self._env.advance(action)
        return reward, terminated, truncated, {**info, **self._now.told}

    def observe(self) -> dict[str, Any]:
        return {**self._env.observe(), "prompt": language(self._now.base)}


class VariantEnv(_Variants):
    """Plays variants in the env of LIBERO-Plus' package, which draws pictures at every step and
    spoils some of them, so that none can be left out."""

    def __init__(self, variants: Sequence[Variant], config: LiberoPlusConfig) -> None:
        super().__init__(variants, config)
        self._data = find_data()
        self.notes = ("LIBERO-Plus draws pictures at every step: chunks save no frames here.",)
        self.facts = {"assets": "LIBERO-Plus'"}
        config.prefer()
        gl.choose_at_import()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        from libero.libero.envs import OffScreenRenderEnv

        variant, size = self._choose(seed), self._config.size
        self.close()
        # Its name says what is changed: for many of them there is no such file.
        file = self._data.bddl_files / variant.suite / f"{variant.name}.bddl"
        env = OffScreenRenderEnv(bddl_file_name=str(file), camera_heights=size, camera_widths=size)
        self._env = env
        env.seed(self._config.scene_seed)
        env.reset()
        seen = env.set_init_state(self._start(variant))
        for _ in range(self._config.settle_steps):
            seen = env.step(_STAND_STILL)[0]
        return self._as_ours(seen), {}

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        seen, reward, done, _ = self._env.step(np.array(action, np.float64))
        told = {"success": bool(done), **self._now.told}
        return self._as_ours(seen), float(reward), bool(done), False, told

    def _start(self, variant: Variant) -> Array:
        if not variant.has_own_start:
            first: Array = self._data.states(variant.suite, variant.base)[0]
            return first
        own = Path("libero_newobj", variant.suite, f"{variant.name}.pruned_init")
        return np.reshape(read_pruned_init(self._data.init_states / own), -1)

    def _as_ours(self, seen: dict[str, Any]) -> dict[str, Any]:
        from hocket.adapters.envs.rendering import axis_angle

        turned = slice(None, None, -1) if self._config.mirrored else slice(None)
        images = {
            key: np.ascontiguousarray(seen[f"{camera}_image"][::-1, turned])
            for key, camera in zip(_KEYS, CAMERAS, strict=True)
        }
        turn = axis_angle(np.roll(seen["robot0_eef_quat"], 1))
        parts = (seen["robot0_eef_pos"], turn, seen["robot0_gripper_qpos"])
        return {"observation/state": np.concatenate(parts), **images, "prompt": self._prompt}

    @property
    def _prompt(self) -> str:
        if self._now.is_told_otherwise:
            return str(self._env.language_instruction)
        return language(self._now.name if self._config.prompts == "theirs" else self._now.base)
