from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from hocket.adapters.envs.metaworld import MetaWorld
from hocket.adapters.policies.reference import STATE_KEY, MetaWorldExpert
from hocket.core.data import Batch, Row, Trial
from hocket.core.specs import ActionSpec, EnvSpec, TaskInfo
from hocket.errors import PolicyError, SpecMismatchError
from support.parts import needs

pytestmark = needs("metaworld", is_there=bool(find_spec("metaworld")), how="make setup")


def row(task: str) -> Row:
    trial = Trial(suite="metaworld", task=task, seed=0)
    return Row(trial=trial, attempt=0, chunk=0, noise_seed=0, prompt="", session="")


def test_experts_solve_their_tasks_from_one_batch():
    tasks = ("reach-v3", "drawer-close-v3", "window-open-v3")
    policy = MetaWorldExpert("", MetaWorldExpert.Config())
    envs = [MetaWorld(task, MetaWorld.Config()).make(task) for task in tasks]
    for env in envs:
        env.use_cameras(())
        env.reset(seed=0)
    won = set()
    for _ in range(150):
        states = np.stack([env.observe()[STATE_KEY] for env in envs])
        values = policy.infer(Batch(arrays={STATE_KEY: states}, rows=tuple(map(row, tasks)))).values
        assert values.shape == (3, 1, 4)
        assert np.abs(values).max() <= 1
        for task, env, chunk in zip(tasks, envs, values, strict=True):
            if env.advance(chunk[0])[3]["success"]:
                won.add(task)
    for env in envs:
        env.close()
    assert won == set(tasks)


def test_a_task_without_an_expert_is_refused():
    policy = MetaWorldExpert("", MetaWorldExpert.Config())
    action = ActionSpec(
        size=4, kind="box", shape=(4,), dtype="<f4", low=-np.ones(4), high=np.ones(4)
    )
    spec = EnvSpec(
        task=TaskInfo(name="puhs-v3"), action=action, observations={}, cameras=(), abilities=()
    )
    with pytest.raises(SpecMismatchError, match="push-v3"):
        policy.bind(spec)
    with pytest.raises(PolicyError, match="juggle"):
        policy.infer(Batch(arrays={STATE_KEY: np.zeros((1, 39))}, rows=(row("juggle-v3"),)))
