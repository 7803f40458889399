"""A flow policy that stays as it is, and a small one that chooses its noise (DSRL)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hocket.cli import main
from hocket.core import plugins
from hocket.core.contracts.policy import NOISE
from hocket.core.data import Batch, Row, Trial, noise_seed
from hocket.core.specs import ArraySpec
from hocket.serve.backend import PolicyBackend, PolicyOptions
from hocket.serve.metrics import Metrics
from hocket.train.learner import checkpoint
from hocket.train.networks.actor import FARTHEST, FlowActor, NoiseActor
from hocket.train.networks.building import NETWORKS, Description
from hocket.train.networks.contract import Observations, Shapes
from hocket.train.networks.policies import ActorConfig, FlowConfig
from support.drifting import CHUNK, WIDTH, Drifting
from support.parts import ROOT
from support.running_server import running

DRIFTING = "support.drifting:Drifting"
STATE = "observation/state"
SHAPES = Shapes(
    observations={STATE: ArraySpec(shape=(2,), dtype="<f4")}, action_size=1, tasks=("corridor",)
)
QUICK = ["--env", "steered:Sides", "--lanes", "1", "--batch", "16", "--minibatch", "64"]


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


def steer(out: Path, policy: str, *flags: str, steps: int = 1500, every: int = 1500) -> list[float]:
    """Success of the policy as it is, and of what steers it, in their evaluations."""
    sizes = ["--steps", str(steps), "--eval-every", str(every), "--eval-episodes", "20"]
    words = ["train", *QUICK, "--policy", policy, "--steer", *sizes, *flags, "--out", str(out)]
    assert main(words) == 0
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record["eval/success"] for record in records if record["kind"] == "eval"]


def batch_of(**arrays: Any) -> Batch:
    trials = [Trial(suite="s", task="corridor", seed=seed) for seed in range(2)]
    rows = [
        Row(
            trial=trial,
            attempt=0,
            chunk=0,
            noise_seed=noise_seed(trial, 0),
            prompt="go",
            session=trial.id,
        )
        for trial in trials
    ]
    return Batch(arrays={STATE: np.zeros((2, 2), np.float32), **arrays}, rows=rows)


def test_noise_is_chosen_so_that_a_frozen_policy_goes_where_it_should(tmp_path: Path) -> None:
    found = steer(tmp_path / "run", DRIFTING, "--lr", "1e-3")
    assert found[0] < 0.8
    assert found[-1] == 1.0
    saved = json.loads((tmp_path / "run" / "best" / "policy.json").read_text())
    assert saved["network"] == NETWORKS[3]
    # Each row of a chunk's noise is the same, and within bounds where it was evaluated.
    assert (Drifting.told == Drifting.told[:, :1]).all()
    best = ["--policy", str(tmp_path / "run" / "best"), "--episodes", "10", "--seed", "500"]
    words = ["eval", "--env", "steered:Sides", "--lanes", "1", *best]
    assert main([*words, "--out", str(tmp_path / "unnamed")]) == 2
    out = tmp_path / "eval"
    assert main([*words, "--policy.base", DRIFTING, "--out", str(out)]) == 0
    assert json.loads((out / "report.json").read_text())["overall"]["rate"] == 1.0
    # It goes on from what it saved.
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0


def test_a_served_policy_is_steered_over_the_wire(tmp_path: Path) -> None:
    metrics = Metrics()
    backend = PolicyBackend(Drifting(), PolicyOptions(name="drifting"), metrics)
    with running(backend, metrics) as server:
        name = f"openpi://{server.address}"
        policy = plugins.build("policies", name, {})
        try:
            assert policy.spec.noise == (CHUNK, WIDTH)
            given = np.full((2, CHUNK, WIDTH), [0.5, 0.25], np.float32)
            given[1] *= -1
            answer = policy.infer(batch_of(**{NOISE: given}))
            np.testing.assert_array_equal(Drifting.told, given)
            np.testing.assert_array_equal(answer.values[:, 0, 0], [1.0, -1.0])
        finally:
            policy.close()
        steer(tmp_path / "run", name, steps=60, every=100)


@pytest.mark.slow
def test_a_policy_of_another_interpreter_is_steered(tmp_path: Path) -> None:
    flags = ["--policy-python", sys.executable, "--algo", "grpo", "--group", "4"]
    steer(tmp_path / "run", DRIFTING, *flags, steps=60, every=100)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--policy", "zero", "--steer"], "does not take the noise"),
        (["--policy", DRIFTING, "--steer", "--residual"], "not both"),
        (["--policy", DRIFTING, "--steer", "--data", "recorded"], "from which noise"),
    ],
)
def test_what_cannot_be_steered_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert main(["train", *QUICK, *flags, "--out", str(tmp_path / "run")]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_a_saved_flow_flows_from_the_noise_that_it_is_given(tmp_path: Path) -> None:
    config = FlowConfig(chunk_length=CHUNK, hidden=(8,), seed=1)
    network = FlowActor(SHAPES, config)
    plain = {"chunk_length": CHUNK, "hidden": [8], "seed": 1}
    saved = Description(network=NETWORKS[1], config=plain, shapes=SHAPES).to_plain()
    folder = tmp_path / "flow"
    weights = {checkpoint.WEIGHTS: network.state_dict()}
    checkpoint.write_folder(folder, weights, {checkpoint.POLICY: saved})
    policy = plugins.build("policies", str(folder), {})
    assert policy.spec.noise == (CHUNK, 1)
    keyed = policy.infer(batch_of()).values
    given = np.random.default_rng(0).standard_normal((2, CHUNK, 1)).astype(np.float32)
    found = policy.infer(batch_of(**{NOISE: given})).values
    x = torch.from_numpy(given)
    seen = Observations({STATE: torch.zeros(2, 2), "task": torch.zeros(2, dtype=torch.int64)})
    with torch.no_grad():
        features = network.encode(seen)
        for step in range(config.denoising_steps):
            time = torch.full((2,), step / config.denoising_steps)
            x = x + network.velocity(features, x, time) / config.denoising_steps
    np.testing.assert_allclose(found, x.numpy(), rtol=1e-5, atol=1e-6)
    assert not np.allclose(keyed, found)
    np.testing.assert_array_equal(policy.infer(batch_of()).values, keyed)


def test_what_was_chosen_is_as_likely_when_it_is_learnt_from() -> None:
    shapes = Shapes(
        observations=SHAPES.observations,
        action_size=3,
        tasks=SHAPES.tasks,
        bounds=((-FARTHEST, FARTHEST),) * 3,
    )
    network = NoiseActor(shapes, ActorConfig(chunk_length=CHUNK, hidden=(8,), std=0.5))
    seen = Observations({STATE: torch.randn(5, 2), "task": torch.zeros(5, dtype=torch.int64)})
    drawn = torch.randn(5, network.noise_size)
    acted = network.act(seen, drawn, deterministic=False)
    # At the start what is chosen is standard normal, as the noise was without it.
    torch.testing.assert_close(acted.actions[:, 0], drawn, rtol=0, atol=0.2)
    assert acted.actions.shape == (5, CHUNK, 3)
    found = network.evaluate(seen, acted.actions, {})
    torch.testing.assert_close(found.log_prob, acted.log_prob)
    assert found.log_prob.shape == (5, CHUNK)
    assert (found.log_prob[:, 1:] == 0).all()


@pytest.mark.slow
def test_the_example_is_steered_from_a_half_to_nearly_all(tmp_path: Path) -> None:
    recorded, cloned = tmp_path / "recorded", tmp_path / "cloned"
    words = ["--env", "steered:Sides", "--env.both", "--policy", "steered:Careless"]
    assert (
        main(["collect", *words, "--episodes", "60", "--lanes", "1", "--to", "run", str(recorded)])
        == 0
    )
    flow = ["--policy", "flow", "--policy.chunk-length", "4", "--policy.hidden", "64", "64"]
    sizes = ["--steps", "40000", "--eval-every", "40000", "--eval-episodes", "40", "--lr", "1e-3"]
    words = ["train", "--env", "steered:Sides", *flow, "--algo", "bc", "--data", str(recorded)]
    assert main([*words, *sizes, "--lanes", "1", "--out", str(cloned)]) == 0
    found = steer(tmp_path / "steered", str(cloned / "best"), steps=3000, every=1000)
    assert found[0] < 0.75
    assert max(found) > 0.9
