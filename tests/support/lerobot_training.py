"""What is checked of training inside an interpreter that has LeRobot: `python lerobot_training.py
CHECK ...`. Each check fails by raising. Run by tests/train/test_train_lerobot.py."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

warnings.simplefilter("ignore")

from hocket.adapters.policies.lerobot.folder import mend_torchvision  # noqa: E402

mend_torchvision()

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from hocket.cli import main  # noqa: E402
from hocket.core import plugins  # noqa: E402
from hocket.core.contracts.policy import NOISE  # noqa: E402
from hocket.core.data import Batch, Row, Trial, noise_seed  # noqa: E402
from hocket.core.specs import ArraySpec  # noqa: E402
from hocket.errors import ConfigError  # noqa: E402
from hocket.train.algorithms.cloning import cloning_loss, flow_numbers  # noqa: E402
from hocket.train.data.windows import Window  # noqa: E402
from hocket.train.networks.building import Description  # noqa: E402
from hocket.train.networks.contract import Observations, Shapes  # noqa: E402
from hocket.train.networks.lora import add_adapter  # noqa: E402
from hocket.train.networks.memory import checkpoint_activations, twin  # noqa: E402
from support import lerobot_models as models  # noqa: E402
from support import lerobot_vision as vision  # noqa: E402

torch.set_num_threads(1)
IMAGE = (models.SIZE, models.SIZE, 3)
SHAPES = Shapes(
    observations={
        "observation/image": ArraySpec(shape=IMAGE, dtype="|u1"),
        "observation/state": ArraySpec(shape=(models.STATES,), dtype="<f4"),
        "observation/wrist_image": ArraySpec(shape=IMAGE, dtype="|u1"),
    },
    action_size=models.MOVES,
    tasks=("image",),
    cameras=("observation/image", "observation/wrist_image"),
)
PROMPTS = ("push the puck", "turn on", "push the puck")


def saved(kind, **settings):
    folder = Path(tempfile.mkdtemp()) / kind
    if kind == "smolvla":
        settings["vlm_model_name"] = str(models.save_backbone(folder.parent / "vlm"))
    elif kind == "pi0":
        vision.shrink_pi("pi0", models.save_backbone(folder.parent / "vlm"))
    elif kind == "pi05":
        vision.backbone_of("pi05", folder.parent / "vlm")
    return models.save(kind, folder, **settings)


def wrapped(folder):
    config = {"settings": {"device": "cpu"}, "std": 0.1}
    name = f"lerobot:{folder}"
    return Description(network=name, config=config, shapes=SHAPES).build(name)


def asked():
    """Three rows, as a policy and as a network are asked for them."""
    rng = np.random.default_rng(0)
    arrays = {
        "observation/state": rng.normal(size=(3, models.STATES)).astype(np.float32),
        "observation/image": rng.integers(0, 256, (3, *IMAGE), np.uint8),
        "observation/wrist_image": rng.integers(0, 256, (3, *IMAGE), np.uint8),
    }
    trials = [Trial(suite="toy", task="image", seed=seed) for seed in range(3)]
    rows = [
        Row(
            trial=trial,
            attempt=0,
            chunk=0,
            noise_seed=noise_seed(trial, 0),
            prompt=prompt,
            session=trial.id,
        )
        for trial, prompt in zip(trials, PROMPTS, strict=True)
    ]
    seen = Observations(
        {
            **{key: torch.from_numpy(array) for key, array in arrays.items()},
            "task": torch.zeros(3, dtype=torch.int64),
            "prompt": torch.tensor([0, 1, 0]),
        },
        PROMPTS[:2],
    )
    return Batch(arrays=arrays, rows=rows), seen


def act_is_wrapped_as_it_acts():
    folder = saved("act")
    batch, seen = asked()
    wanted = plugins.build("policies", f"lerobot:{folder}", {"device": "cpu"}).infer(batch).values
    network = wrapped(folder)
    for one in (network, twin(network, "cpu")):
        acted = one.act(seen, torch.zeros(3, one.noise_size), deterministic=True)
        np.testing.assert_allclose(acted.actions.detach().numpy(), wanted, rtol=1e-4, atol=1e-5)
    learns(network, seen)
    reached = {name for name, p in network.named_parameters() if p.requires_grad}
    assert not any("vae_encoder" in name for name in reached)


def learns(network, seen, *, whole=True):
    """What was sampled is as likely when it is learnt from, and what is trained gets a gradient:
    the whole of it, where nothing of the policy is idle when it acts."""
    noise = torch.randn(3, network.noise_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        acted = network.act(seen, noise, deterministic=False)
    found = network.evaluate(seen, acted.actions, acted.extras)
    torch.testing.assert_close(found.log_prob, acted.log_prob, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.value, acted.value, rtol=1e-3, atol=1e-3)
    (found.log_prob.sum() + found.value.sum()).backward()
    lacking = [n for n, p in network.named_parameters() if p.requires_grad and p.grad is None]
    assert not whole or not lacking, lacking
    assert any(p.grad is not None for p in network.module.parameters())


def train(folder, out, *flags):
    env = ["--env", "toy:image", "--env.image-size", str(models.SIZE), "--env.action-size", "3"]
    env += ["--env.length-min", "8", "--env.length-max", "12", "--reward", "env"]
    sizes = ["--steps", "60", "--batch", "4", "--lanes", "1", "--epochs", "2", "--minibatch", "8"]
    sizes += ["--eval-every", "100", "--eval-episodes", "2"]
    sizes += ["--lr", "1e-6"]  # small beside the spread, so that no step is undone
    assert main(["train", *env, "--policy", f"lerobot:{folder}", *sizes, *flags, "--out", out]) == 0
    best = ["--policy", f"{out}/best", "--policy.network", f"lerobot:{folder}"]
    counts = ["--episodes", "2", "--lanes", "1", "--out", f"{out}-eval"]
    assert main(["eval", *env[:-2], *best, *counts]) == 0


def act_is_trained_and_evaluated():
    folder, out = saved("act"), tempfile.mkdtemp() + "/run"
    train(folder, out, "--micro-batch", "3")
    first = load_file(folder / "model.safetensors")
    newest = sorted(Path(out, "checkpoints").iterdir())[-1]
    last = load_file(newest / "weights.safetensors")
    key = "model.action_head.weight"
    assert not torch.equal(first[key], last[f"module.policy.{key}"])
    frozen = load_file(newest / "frozen.safetensors")
    assert frozen
    assert all("vae_encoder" in name for name in frozen)
    # It goes on from what it saved.
    assert main(["train", "--resume", out]) == 0


def adapted(network, seen):
    """Answers as before, and only what is new is trained."""
    noise = torch.zeros(3, network.noise_size)
    before = network.act(seen, noise, deterministic=True).actions.detach()
    add_adapter(network, "lora:r=4")
    torch.testing.assert_close(network.act(seen, noise, deterministic=True).actions, before)
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    new = ("critic", "log_std")
    assert trained
    assert all(name.startswith(new) or "lora_" in name for name in trained), trained
    assert any("lora_B" in name for name in trained)


def an_adapter_leaves_answers_as_they_are():
    _, seen = asked()
    network = wrapped(saved("act"))
    adapted(network, seen)
    learns(network, seen)
    copied = twin(network, "cpu")
    learns(copied, seen)


def act_is_trained_with_an_adapter():
    folder, out = saved("act"), tempfile.mkdtemp() + "/run"
    train(folder, out, "--adapter", "lora:r=4", "--micro-batch", "4")
    newest = sorted(Path(out, "checkpoints").iterdir())[-1]
    weights = load_file(newest / "weights.safetensors")
    learnt = [name for name in weights if "lora_B" in name]
    assert any(weights[name].abs().max() > 0 for name in learnt)
    frozen = load_file(newest / "frozen.safetensors")
    assert "module.policy.model.action_head.base_layer.weight" in frozen
    assert sum(t.numel() for t in frozen.values()) > 20 * sum(weights[n].numel() for n in learnt)
    assert main(["train", "--resume", out]) == 0


def smolvla_flows_as_it_acts():
    flows_as_it_acts("smolvla")


def pi0_flows_as_it_acts():
    flows_as_it_acts("pi0")


def pi05_flows_as_it_acts():
    flows_as_it_acts("pi05")


def flows_as_it_acts(kind):
    folder = saved(kind)
    _, seen = asked()
    network = wrapped(folder)
    module = network.module
    noise = torch.randn(3, 6, module.flow_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = module.policy.predict_action_chunk(module.read(seen), noise=noise.clone())
        features, ours = network.encode(seen), noise
        for step in range(module.denoising_steps):
            time = torch.full((3,), step / module.denoising_steps)
            ours = ours + network.velocity(features, ours, time) / module.denoising_steps
        torch.testing.assert_close(module.decode(ours), module.actions(wanted))
        takes_noise(folder, network, noise)
    learns(network, seen, whole=False)


def takes_noise(folder, network, noise):
    """The policy that acts flows from the noise of its batch, also where rows share what they
    see."""
    policy = plugins.build("policies", f"lerobot:{folder}", {"device": "cpu"})
    assert policy.spec.noise == noise.shape[1:]
    batch, seen = asked()
    one = {key: np.repeat(array[:1], 3, 0) for key, array in batch.arrays.items()}
    same = Batch(arrays=one, rows=[replace(row, prompt=PROMPTS[0]) for row in batch.rows])
    alike = Observations(
        {
            **{key: torch.from_numpy(array) for key, array in one.items()},
            "task": seen["task"],
            "prompt": torch.zeros(3, dtype=torch.int64),
        },
        PROMPTS[:2],
    )
    for told, looked in ((batch, seen), (same, alike)):
        given = replace(told, arrays={**told.arrays, NOISE: noise.numpy()})
        features, ours = network.encode(looked), noise
        for step in range(network.module.denoising_steps):
            time = torch.full((3,), step / network.module.denoising_steps)
            ours = ours + network.velocity(features, ours, time) / network.module.denoising_steps
        wanted = network.module.decode(ours).numpy()
        np.testing.assert_allclose(policy.infer(given).values, wanted, rtol=1e-4, atol=1e-4)


def smolvla_is_cloned():
    is_cloned("smolvla")


def pi0_is_cloned():
    is_cloned("pi0")


def pi05_is_cloned():
    is_cloned("pi05")


def is_cloned(kind):
    """Its loss on recorded chunks is LeRobot's own, for the same noise and time, and falls."""
    network = wrapped(saved(kind))
    module, (_, seen) = network.module, asked()
    rng = torch.Generator().manual_seed(0)
    actions = torch.randn(3, 6, models.MOVES, generator=rng)
    ends = network.code(actions)
    assert ends.shape == (3, 6, module.flow_size)
    torch.testing.assert_close(module.decode(ends), actions)
    noise = torch.randn(3, flow_numbers(network) + 1, generator=rng)
    start, time = noise[:, :-1].view(ends.shape), network.times(noise[:, -1])
    inputs = {**module.read(seen), "action": ends[:, :, : models.MOVES]}
    theirs = []
    forward = module.policy.model.forward
    module.policy.model.forward = lambda *args: theirs.append(forward(*args)) or theirs[-1]
    # SmolVLA's could be told noise and time; pi0's draws them.
    model = module.policy.model
    sample_time = model.sample_time
    model.sample_noise, model.sample_time = lambda *_: start, lambda *_: 1 - time
    module.policy.forward(dict(inputs))
    del model.sample_noise, model.sample_time
    model.forward = forward
    window = Window(observation=seen, actions=actions, mask=torch.ones(3, 6, dtype=torch.bool))
    loss = cloning_loss(network, window, noise)
    # LeRobot's mean over what actions are made of, without what pads them.
    assert abs(float(loss.detach()) / 18 - float(theirs[0][..., : models.MOVES].mean())) < 1e-4
    torch.manual_seed(0)
    drawn = sample_time(20_000, "cpu").sort().values
    ours = (1 - network.times(torch.randn(20_000, generator=rng))).sort().values
    assert (drawn - ours).abs().max() < 0.02, (drawn - ours).abs().max()
    assert 0.13 < (ours > 0.9).float().mean() < 0.16  # the first of ten steps
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        cloning_loss(network, window, noise).backward()
        optimizer.step()
    assert float(cloning_loss(network, window, noise).detach()) < 0.8 * float(loss.detach())


def smolvla_is_trained_with_an_adapter():
    is_trained_with_an_adapter("smolvla", "--algo", "grpo", "--group", "2")


def pi0_is_trained_with_an_adapter():
    is_trained_with_an_adapter("pi0", "--noise-at", "one")


def pi05_is_trained_with_an_adapter():
    is_trained_with_an_adapter("pi05", "--checkpoint-activations", "--precision", "bf16")


def is_trained_with_an_adapter(kind, *flags):
    folder, out = saved(kind), tempfile.mkdtemp() + "/run"
    train(folder, out, "--adapter", "lora:r=4", "--micro-batch", "2", *flags)
    assert any("lora_B" in name for name in load_file(f"{out}/best/weights.safetensors"))


def pi05_learns_the_same_where_activations_are_computed_again():
    _, seen = asked()
    network = wrapped(saved("pi05"))
    noise = torch.randn(3, network.noise_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        acted = network.act(seen, noise, deterministic=False)
    kept = []
    for computes_again in (False, True):
        if computes_again:
            checkpoint_activations(network)
        found = network.evaluate(seen, acted.actions, acted.extras).log_prob.sum()
        parameters = [p for p in network.module.parameters() if p.requires_grad]
        kept.append(torch.autograd.grad(found, parameters, allow_unused=True))
    for one, other in zip(*kept, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def other_kinds_are_refused():
    folder = saved("vqbet", cameras=models.CAMERAS[:1])
    with contextlib.suppress(ConfigError):
        wrapped(folder)
        raise AssertionError("vqbet was taken")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        sys.stdout.write(f"{name} holds\n")
