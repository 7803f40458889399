"""What is checked inside an interpreter that has LeRobot: `python lerobot_checks.py CHECK ...`.

Each check is a function; it fails by raising. Run by test_lerobot.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np

warnings.simplefilter("ignore")

from hocket.adapters.policies.lerobot.folder import mend_torchvision  # noqa: E402

mend_torchvision()

import torch  # noqa: E402
from lerobot.configs.policies import PreTrainedConfig  # noqa: E402
from lerobot.policies.factory import get_policy_class, make_pre_post_processors  # noqa: E402

from hocket.adapters.policies.lerobot.noise import KeyedNoise  # noqa: E402
from hocket.core import plugins  # noqa: E402
from hocket.core.data import Batch, Row, Trial, noise_seed  # noqa: E402
from hocket.engine.replay import ChunkReplay  # noqa: E402
from hocket.errors import ConfigError  # noqa: E402
from support import lerobot_models as models  # noqa: E402

torch.set_num_threads(1)
PROMPTS = ("push the puck", "turn on", "push the puck")
LENGTHS = (11, 7, 15)
"""Episodes of unequal length: lanes are out of step."""
DIFFERENCES = {}
"""The largest difference from LeRobot's own loop, by class."""


class Plant:
    """A small closed loop: what is seen follows from what was done."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)
        self.state = self._rng.normal(size=models.STATES).astype(np.float32)

    def see(self):
        rng = np.random.default_rng(np.abs(self.state * 1e4).astype(np.int64))
        shape = (models.SIZE, models.SIZE, 3)
        return {
            "observation/state": self.state.copy(),
            "observation/image": rng.integers(0, 256, shape, np.uint8),
            "observation/wrist_image": rng.integers(0, 256, shape, np.uint8),
        }

    def do(self, action):
        push = np.resize(np.asarray(action, np.float32), models.STATES)
        # Coarse, so that a difference in the last digit of an action does not change an image.
        self.state = np.round(0.7 * self.state + 0.1 * push, 2).astype(np.float32)


def saved(kind, **settings):
    folder = Path(tempfile.mkdtemp()) / kind
    if kind == "vqbet":  # takes one camera
        settings.setdefault("cameras", models.CAMERAS[:1])
    if kind == "tdmpc":  # takes one camera, of one name
        settings.setdefault("cameras", ("observation.image",))
    if kind == "smolvla":
        settings["vlm_model_name"] = str(models.save_backbone(folder.parent / "vlm"))
    if kind == "xvla":
        settings["tokenizer_name"] = str(models.save_backbone(folder.parent / "vlm"))
    return models.save(kind, folder, **settings)


def loaded(folder, **settings):
    return plugins.build("policies", f"lerobot:{folder}", {"device": "cpu", **settings})


def own_loop(folder, lane, noise):
    """LeRobot's own way: processors and `select_action`, one env, every step."""
    config = PreTrainedConfig.from_pretrained(str(folder))
    policy = get_policy_class(config.type).from_pretrained(str(folder), config=config)
    before, after = make_pre_post_processors(config, pretrained_path=str(folder))
    plant, actions = Plant(lane), []
    policy.reset()
    for _ in range(LENGTHS[lane]):
        seen = plant.see()
        batch = {"task": [PROMPTS[lane]]}
        for key, value in seen.items():
            tensor = torch.from_numpy(value)[None]
            if value.ndim == 3:
                name = key.replace("/", ".")
                if name not in config.input_features:
                    name = key.replace("observation/", "observation.images.")
                if name not in config.input_features:
                    continue
                batch[name] = tensor.permute(0, 3, 1, 2).contiguous().float() / 255
            else:
                batch["observation.state"] = tensor
        with torch.inference_mode(), noise(len(actions)):
            action = after(policy.select_action(before(batch)))
        actions.append(action[0].numpy())
        plant.do(actions[-1])
    return np.array(actions)


def hockets_loop(policy):
    """All lanes at once, each with chunks of its own; asked only where one is used up."""
    replay = ChunkReplay(policy, prompts=PROMPTS)
    plants, actions = [Plant(lane) for lane in range(3)], [[], [], []]
    for step in range(max(LENGTHS)):
        seen = [plant.see() for plant in plants]
        moves = replay.act({key: np.stack([some[key] for some in seen]) for key in seen[0]})
        for lane, plant in enumerate(plants):
            if step < LENGTHS[lane]:
                actions[lane].append(moves[lane])
            plant.do(moves[lane])
    return [np.array(some) for some in actions]


def same_as_own_loop(kind, **settings):
    """The largest difference of any action in the two loops, which must be of rounding alone."""
    folder = saved(kind, **settings)
    worst = 0.0
    policy = loaded(folder)
    asked = policy.infer
    seeds = []

    def infer(batch):
        seeds.extend((row.trial, row.chunk, row.noise_seed) for row in batch.rows)
        return asked(batch)

    policy.infer = infer
    ours = hockets_loop(policy)
    trials = list(dict.fromkeys(trial for trial, _, _ in seeds))
    assert len(trials) == 3
    for lane, trial in enumerate(trials):
        keyed = {chunk: seed for owner, chunk, seed in seeds if owner == trial}

        def noise(step, keyed=keyed):
            seed = keyed[step // policy.spec.replan]
            shared = {"shared": ~seed & (2**63 - 1)} if kind == "tdmpc" else {}
            return KeyedNoise([seed], torch.device("cpu"), **shared)

        own = own_loop(folder, lane, noise)
        np.testing.assert_allclose(ours[lane], own, rtol=1e-4, atol=1e-5)
        worst = max(worst, float(np.abs(ours[lane] - own).max()))
    assert np.abs(ours[0][:7] - ours[1]).max() > 1e-3
    DIFFERENCES[kind] = max(worst, DIFFERENCES.get(kind, 0.0))


def act_acts_as_in_lerobots_own_loop():
    same_as_own_loop("act")


def act_ensembles_as_in_lerobots_own_loop():
    same_as_own_loop("act", temporal_ensemble_coeff=0.01, n_action_steps=1)


def diffusion_acts_as_in_lerobots_own_loop():
    same_as_own_loop("diffusion")


def vqbet_acts_as_in_lerobots_own_loop():
    same_as_own_loop("vqbet")


def smolvla_acts_as_in_lerobots_own_loop():
    same_as_own_loop("smolvla")


def xvla_acts_as_in_lerobots_own_loop():
    same_as_own_loop("xvla")


def pi0_acts_as_in_lerobots_own_loop():
    models.shrink_pi0(models.save_backbone(Path(tempfile.mkdtemp()) / "vlm"))
    same_as_own_loop("pi0")
    # LeRobot prints a warning and goes on with random weights.
    folder = saved("pi0")
    models.edit(folder, max_action_dim=7)
    assert "does not fit the policy that config.json describes" in _refusal(folder)


def weights_that_do_not_fit_are_refused():
    folder = saved("act")
    models.edit(folder, dim_model=16)
    assert "does not fit the policy that config.json describes" in _refusal(folder)


def multi_task_dit_acts_as_in_lerobots_own_loop():
    clip = str(models.save_clip(Path(tempfile.mkdtemp()) / "clip"))
    same_as_own_loop("multi_task_dit", vision_encoder_name=clip, text_encoder_name=clip)


def tdmpc_plans_as_in_lerobots_own_loop():
    same_as_own_loop("tdmpc")
    same_as_own_loop("tdmpc", n_action_repeats=1, n_action_steps=2)
    said = _refusal(saved("tdmpc", cameras=models.CAMERAS[:1]))
    assert "by the name observation.image alone" in said, said


def _refusal(folder):
    try:
        loaded(folder)
    except ConfigError as exc:
        return str(exc)
    return ""


def sac_acts_as_in_lerobots_own_loop():
    same_as_own_loop(models.SAC)


def plans_are_each_attempts_own():
    policy = loaded(saved("tdmpc"))
    seen = Plant(0).see()
    arrays = {key: seen[key][None] for key in policy.spec.inputs}

    def ask(session):
        row = make_row(3, session)
        if session not in begun:
            begun.add(session)
            policy.begin_session(row)
        return policy.infer(Batch(arrays=arrays, rows=(row,))).values

    begun = set()
    first, second = ask("a"), ask("a")
    assert not np.array_equal(first, second)  # it begins where the last plan ended
    np.testing.assert_array_equal(ask("b"), first)  # another attempt has none
    np.testing.assert_array_equal(ask("b"), second)
    policy.end_session("a")
    np.testing.assert_array_equal(ask("a"), first)


def a_row_does_not_depend_on_its_batch():
    rng = np.random.default_rng(0)
    for kind in set(models.SMALL) - {"pi0", "multi_task_dit"}:
        policy = loaded(saved(kind))
        history = policy.spec.history
        lead = (4, history) if history > 1 else (4,)
        arrays = {
            "observation/state": rng.normal(size=(*lead, models.STATES)).astype(np.float32),
            **{
                f"observation/{name}": rng.integers(
                    0, 256, (*lead, models.SIZE, models.SIZE, 3), np.uint8
                )
                for name in ("image", "wrist_image")
            },
        }
        rows = tuple(make_row(i) for i in range(4))
        together = _ask(policy, arrays, rows)
        for i, row in enumerate(rows):
            alone = {key: value[i : i + 1] for key, value in arrays.items()}
            single = _ask(policy, alone, (row,))[0]
            np.testing.assert_allclose(together[i], single, rtol=1e-3, atol=1e-4, err_msg=kind)
        other = _ask(policy, arrays, tuple(make_row(i + 9) for i in range(4)))
        assert (kind == "act") == np.allclose(together, other), kind


def _ask(policy, arrays, rows):
    """The first chunk of new attempts."""
    if hasattr(policy, "begin_session"):
        for row in rows:
            policy.begin_session(row)
    return policy.infer(Batch(arrays=arrays, rows=rows)).values


def make_row(number, session=None):
    trial = Trial(suite="s", task="t", seed=number)
    return Row(
        trial=trial,
        attempt=0,
        chunk=0,
        noise_seed=noise_seed(trial, 0),
        prompt="push the puck",
        session=session or str(number),
    )


def specs_tell_what_a_policy_reads():
    spec = loaded(saved("diffusion")).spec
    assert (spec.chunk_length, spec.replan, spec.history, spec.action_size) == (4, 4, 2, 3)
    assert spec.inputs["observation/image"].shape == (64, 64, 3)
    assert spec.cameras == ("observation/image", "observation/wrist_image")
    spec = loaded(saved("act")).spec
    assert (spec.chunk_length, spec.replan, spec.history) == (6, 4, 1)
    assert loaded(saved("smolvla")).spec.inputs["observation/image"].shape == (-1, -1, 3)
    ensembled = loaded(saved("act", temporal_ensemble_coeff=0.01, n_action_steps=1))
    assert (ensembled.spec.chunk_length, ensembled.spec.replan) == (1, 1)
    assert hasattr(ensembled, "begin_session")
    assert not hasattr(loaded(saved("act")), "begin_session")


def pi0_of_lerobot_0_4_is_refused_with_what_to_do():
    folder = saved("act")
    models.edit(folder, type="pi0")
    said = _refusal(folder)
    assert "transformers" in said, said
    assert "lerobot-0.6" in said, said


if __name__ == "__main__":
    from support import lerobot_guided

    # Importing LeRobot takes far longer than any check.
    for name in sys.argv[1:]:
        try:
            {**vars(lerobot_guided), **globals()}[name]()
        except Exception:  # noqa: BLE001 - told by name, and the others go on
            sys.stdout.write(f"broken {name}\n{traceback.format_exc()}\n")
        else:
            sys.stdout.write(f"passed {name}\n")
    facts = {"known": sorted(PreTrainedConfig.get_known_choices()), "differences": DIFFERENCES}
    sys.stdout.write(f"facts {json.dumps(facts)}\n")
