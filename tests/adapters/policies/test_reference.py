from __future__ import annotations

import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

from hocket.adapters.envs.metaworld import MT10, MetaWorld
from hocket.adapters.policies.reference import STATE_KEY, Reference, features, pack, unpack
from hocket.core import plugins
from hocket.core.data import Batch, Row, Trial
from hocket.core.specs import ActionSpec, EnvSpec, TaskInfo
from hocket.errors import ConfigError, PolicyError, SpecMismatchError


@pytest.fixture(scope="module")
def policy() -> Reference:
    return Reference("", Reference.Config())


def row(task: str) -> Row:
    trial = Trial(suite="metaworld", task=task, seed=0)
    return Row(trial=trial, attempt=0, chunk=0, noise_seed=0, prompt="", session="")


def batch(states, tasks, pad: int = 0) -> Batch:
    return Batch(arrays={STATE_KEY: states}, rows=tuple(map(row, tasks)), pad=pad)


def states(count: int):
    """Numbers of the size that states have."""
    return np.random.default_rng(0).normal(0, 0.3, (count, 39))


def test_a_row_is_the_same_to_the_bit_in_every_batch_and_at_every_place(policy):
    seen, tasks = states(64), [MT10[i % 10] for i in range(64)]
    alone = [policy.infer(batch(seen[i : i + 1], tasks[i : i + 1])).values[0] for i in range(64)]
    for size in range(1, 65):
        for first in {0, 1, (64 - size) // 2, 64 - size}:
            if first + size > 64:
                continue
            window = slice(first, first + size)
            values = policy.infer(batch(seen[window], tasks[window])).values
            assert values.tobytes() == np.stack(alone[window]).tobytes(), (size, first)


def test_a_row_is_the_same_in_any_order_layout_and_padding(policy):
    seen, tasks = states(16), [MT10[i % 10] for i in range(16)]
    expected = policy.infer(batch(seen, tasks)).values
    order = np.random.default_rng(1).permutation(16)
    shuffled = policy.infer(batch(seen[order], [tasks[i] for i in order])).values
    assert np.array_equal(shuffled, expected[order])
    strided = np.asfortranarray(seen)
    assert np.array_equal(policy.infer(batch(strided, tasks)).values, expected)
    padded = np.concatenate((seen, seen[-1:], seen[-1:]))
    values = policy.infer(batch(padded, tasks, pad=2)).values
    assert np.array_equal(values[:16], expected)
    assert values.shape == (18, 16, 4)


def test_answers_do_not_depend_on_the_number_of_blas_threads(policy):
    code = """
import sys
import numpy as np
from hocket.core.data import Batch, Row, Trial
from hocket.adapters.policies.reference import STATE_KEY, Reference
policy = Reference("", Reference.Config())
trial = Trial(suite="metaworld", task="push-v3", seed=0)
row = Row(trial=trial, attempt=0, chunk=0, noise_seed=0, prompt="", session="")
seen = np.random.default_rng(0).normal(0, 0.3, (4, 39))
values = policy.infer(Batch(arrays={STATE_KEY: seen}, rows=(row,) * 4)).values
sys.stdout.buffer.write(values.tobytes())
"""
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"OPENBLAS_NUM_THREADS": threads, "PATH": ""},
            capture_output=True,
            timeout=100,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    here = policy.infer(batch(states(4), ["push-v3"] * 4)).values.tobytes()
    assert answers == {here}


def test_a_chunk_stays_in_the_action_space(policy):
    values = policy.infer(batch(states(20) * 10, MT10 * 2)).values
    assert values.shape == (20, 16, 4)
    assert values.dtype == np.float32
    assert np.isfinite(values).all()
    assert np.abs(values).max() <= 1


def test_a_task_that_it_never_learnt_is_refused_before_the_run_and_in_a_batch(policy):
    action = ActionSpec(
        size=4, kind="box", shape=(4,), dtype="<f4", low=-np.ones(4), high=np.ones(4)
    )

    def env(name: str) -> EnvSpec:
        task = TaskInfo(name=name)
        return EnvSpec(task=task, action=action, observations={}, cameras=(), abilities=())

    policy.bind(env("push-v3"))
    with pytest.raises(SpecMismatchError, match="door-open-v3"):
        policy.bind(env("door-close-v3"))
    with pytest.raises(PolicyError, match="hammer-v3"):
        policy.infer(batch(states(2), ["push-v3", "hammer-v3"]))


def test_weights_are_small_and_need_no_pickle(policy):
    file = resources.files("hocket.adapters.policies") / "weights" / "reference.npz"
    assert len(file.read_bytes()) <= 4_000_000
    networks = policy._tasks
    assert tuple(networks) == MT10
    again = unpack(pack(networks))
    for task, network in networks.items():
        for layer, copy in zip(network.layers, again[task].layers, strict=True):
            assert np.array_equal(layer[0], copy[0])
            assert np.array_equal(layer[1], copy[1])


def test_weights_that_cannot_be_read_are_said_so(tmp_path):
    wrong = tmp_path / "wrong.npz"
    wrong.write_bytes(b"no weights")
    for path in (wrong, tmp_path / "missing.npz"):
        with pytest.raises(ConfigError, match="cannot be read"):
            Reference("", Reference.Config(weights=str(path)))
    with pytest.raises(ConfigError, match="weights"):
        plugins.build("policies", "reference:v2")


def test_importing_and_answering_loads_neither_torch_nor_the_simulator():
    code = (
        "import sys; from hocket.adapters.policies.reference import Reference;"
        "Reference('', Reference.Config());"
        "sys.exit(any(m in sys.modules for m in ('torch', 'mujoco', 'metaworld')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100, check=False).returncode == 0


def test_features_of_a_row_do_not_depend_on_its_neighbours():
    seen = states(33)
    whole = features(seen)
    for i in range(33):
        assert np.array_equal(features(seen[i : i + 1])[0], whole[i])


def solves(policy: Reference, task: str, seed: int) -> bool:
    env = MetaWorld(task, MetaWorld.Config()).make(task)
    env.use_cameras(())
    env.reset(seed=seed)
    try:
        while True:
            state = env.observe()[STATE_KEY][None]
            for action in policy.infer(batch(state, [task])).values[0]:
                _, _, truncated, info = env.advance(action)
                if info["success"] or truncated:
                    return info["success"]
    finally:
        env.close()


def test_it_solves_nearly_every_task_from_the_first_seed(policy):
    pytest.importorskip("metaworld")
    assert sum(solves(policy, task, 0) for task in MT10) >= 9


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_solves_mt10_on_seeds_that_training_never_saw(policy):
    pytest.importorskip("metaworld")
    won = {task: sum(solves(policy, task, seed) for seed in range(20)) for task in MT10}
    assert sum(won.values()) >= 0.92 * 200, won
    assert min(won.values()) >= 10, won
