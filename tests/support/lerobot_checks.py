"""What is checked inside an interpreter that has LeRobot: `python lerobot_checks.py CHECK ...`.

Each check is a function; it fails by raising. Run by test_lerobot.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import shutil
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
from lerobot.utils.import_utils import register_third_party_plugins  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from hocket.adapters.policies.lerobot.noise import KeyedNoise  # noqa: E402
from hocket.core import plugins  # noqa: E402
from hocket.core.data import Batch, Row, Trial, noise_seed  # noqa: E402
from hocket.engine.replay import ChunkReplay  # noqa: E402
from hocket.errors import ConfigError  # noqa: E402
from support import lerobot_models as models  # noqa: E402
from support import lerobot_vision as vision  # noqa: E402

torch.set_num_threads(1)
PROMPTS = ("push the puck", "turn on", "push the puck")
LENGTHS = (11, 7, 15)
"""Episodes of unequal length: lanes are out of step."""
KNOWN = sorted(PreTrainedConfig.get_known_choices())
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
    if kind in vision.SMALL:
        settings |= vision.backbone_of(kind, folder.parent / "vlm")
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
    kind = get_policy_class(config.type)
    if (folder / "adapter_config.json").exists():
        from peft import PeftConfig, PeftModel

        base = PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
        policy = kind.from_pretrained(base, config=config)
        policy = PeftModel.from_pretrained(policy, str(folder)).eval()
    else:
        policy = kind.from_pretrained(str(folder), config=config)
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


def same_as_own_loop(kind, *, folder=None, **settings):
    """The largest difference of any action in the two loops, which must be of rounding alone."""
    folder = folder or saved(kind, **settings)
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
    vision.shrink_pi("pi0", models.save_backbone(Path(tempfile.mkdtemp()) / "vlm"))
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


def pi05_acts_as_in_lerobots_own_loop():
    same_as_own_loop("pi05")


def pi0_fast_acts_as_in_lerobots_own_loop():
    same_as_own_loop("pi0_fast")


def eo1_acts_as_in_lerobots_own_loop():
    same_as_own_loop("eo1")


def vla_jepa_acts_as_in_lerobots_own_loop():
    same_as_own_loop("vla_jepa")


def evo1_acts_as_in_lerobots_own_loop():
    """Its chunks are wider than the env's actions until they are postprocessed."""
    same_as_own_loop("evo1")


def fastwam_acts_as_in_lerobots_own_loop():
    """Its chunk has another length than others call it by."""
    same_as_own_loop("fastwam")


def lora_fine_tunes_act_as_in_lerobots_own_loop():
    """Saved as LeRobot's training saves them: what differs, and no weights of their own."""
    base = saved("act")
    folder = tuned(base)
    assert not (folder / "model.safetensors").exists()
    same_as_own_loop("act", folder=folder)
    policy = loaded(folder)
    batch = {key: value[None] for key, value in Plant(0).see().items()}
    batch = Batch(arrays=batch, rows=(make_row(0),))
    plain = loaded(base).infer(batch).values
    assert np.abs(policy.infer(batch).values - plain).max() > 1e-3
    assert policy.spec.origin["base"] == str(base)
    weights = (base / "model.safetensors").read_bytes()
    assert policy.spec.origin["base/model.safetensors"] == hashlib.sha256(weights).hexdigest()
    # Somewhere else it may be called otherwise.
    moved = base.rename(base.with_name("elsewhere"))
    said = _refusal(folder)
    assert "--policy.base" in said, said
    assert str(base) in said, said
    again = loaded(folder, base=str(moved)).infer(batch).values
    np.testing.assert_array_equal(again, policy.infer(batch).values)
    # LeRobot warns of keys that are missing, and goes on without what they would change.
    weights = load_file(folder / "adapter_model.safetensors")
    weights.pop(min(weights))
    save_file(weights, folder / "adapter_model.safetensors")
    said = _refusal(folder, base=str(moved))
    assert "does not fit the policy that it names" in said, said


def tuned(base):
    """A LoRA fine-tune of a saved policy, whose adapters are not 0, as they begin."""
    from peft import LoraConfig, get_peft_model

    config = PreTrainedConfig.from_pretrained(str(base))
    policy = get_policy_class("act").from_pretrained(str(base), config=config)
    settings = LoraConfig(
        r=2, target_modules=["linear1", "linear2"], modules_to_save=["action_head"]
    )
    policy.name_or_path = str(base)
    wrapped = get_peft_model(policy, settings)
    torch.manual_seed(4)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    folder = base.with_name("tuned")
    wrapped.save_pretrained(str(folder))
    for name in base.iterdir():
        if name.name.startswith("policy_") or name.name == "config.json":
            shutil.copy(name, folder)
    if "use_peft" in {each.name for each in dataclasses.fields(config)}:
        models.edit(folder, use_peft=True)
    return folder


def fields_of_another_version_are_dropped_where_they_are_null():
    folder = saved("act")
    models.edit(folder, of_another_version=None)
    batch = {key: value[None] for key, value in Plant(0).see().items()}
    loaded(folder).infer(Batch(arrays=batch, rows=(make_row(0),)))
    other = "lerobot-0.4" if models.SAC == "gaussian_actor" else "lerobot"
    for change in ({"of_another_version": 3}, {"type": "of_another_version"}):
        models.edit(folder, **change)
        said = _refusal(folder)
        assert "of_another_version" in said, said
        assert f"--policy-python venvs/{other}/bin/python" in said, said


def policies_of_third_parties_are_asked():
    """A class that an installed package registers, whose chunks are shorter than it says."""
    place = Path(tempfile.mkdtemp())
    package = place / "lerobot_policy_steady"
    package.mkdir()
    about = place / "lerobot_policy_steady-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lerobot_policy_steady\nVersion: 1\n"
    )
    (about / "RECORD").write_text("")
    (about / "top_level.txt").write_text("lerobot_policy_steady\n")
    source = Path(__file__).with_name("lerobot_third_party.py")
    shutil.copy(source, package / "modeling_steady.py")
    text = (
        "from .modeling_steady import SteadyConfig, SteadyPolicy, make_steady_pre_post_processors\n"
    )
    (package / "__init__.py").write_text(text)
    (package / "configuration_steady.py").write_text("from .modeling_steady import SteadyConfig\n")
    (package / "processor_steady.py").write_text(text)
    sys.path.insert(0, str(place))
    importlib.invalidate_caches()
    register_third_party_plugins()
    folder = saved("steady", chunk_size=6, n_action_steps=4)
    spec = loaded(folder).spec
    assert (spec.chunk_length, spec.replan, spec.action_size) == (4, 4, models.MOVES)
    same_as_own_loop("steady", folder=folder)


def tdmpc_plans_as_in_lerobots_own_loop():
    same_as_own_loop("tdmpc")
    same_as_own_loop("tdmpc", n_action_repeats=1, n_action_steps=2)
    said = _refusal(saved("tdmpc", cameras=models.CAMERAS[:1]))
    assert "by the name observation.image alone" in said, said


def _refusal(folder, **settings):
    try:
        loaded(folder, **settings)
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


def rows_of_one_observation_are_encoded_once():
    _encoded_once("smolvla")


def pi0_s_rows_of_one_observation_are_encoded_once():
    _encoded_once("pi0")


def _encoded_once(kind):
    rng = np.random.default_rng(0)
    policy = loaded(saved(kind))
    encode, encoded = policy._loaded.policy.model.embed_prefix, []

    def counted(images, *others, **named):
        encoded.append(len(images[0]))
        return encode(images, *others, **named)

    policy._loaded.policy.model.embed_prefix = counted
    size = (5, models.SIZE, models.SIZE, 3)
    image, wrist = (rng.integers(0, 256, size, np.uint8) for _ in range(2))
    state = rng.normal(size=(5, models.STATES)).astype(np.float32)
    for array in (image, wrist, state):
        array[[2, 4]] = array[1]
    image[3], state[3] = image[0], state[0]  # but another wrist picture
    arrays = {
        "observation/state": state,
        "observation/image": image,
        "observation/wrist_image": wrist,
    }
    rows = tuple(make_row(i) for i in range(5))
    together = _ask(policy, arrays, rows)
    assert encoded == [3], encoded
    for i, row in enumerate(rows):
        alone = {key: value[i : i + 1] for key, value in arrays.items()}
        single = _ask(policy, alone, (row,))[0]
        np.testing.assert_allclose(together[i], single, rtol=1e-3, atol=1e-4)
    assert not np.allclose(together[1], together[2]), "noise is each row's own"
    _ask(policy, arrays, (*rows[:4], dataclasses.replace(rows[4], prompt="turn on")))
    assert encoded[-1] == 4, "another prompt is another observation"


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
    assert "--policy-python venvs/lerobot/bin/python" in said, said


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
    facts = {"known": KNOWN, "differences": DIFFERENCES}
    sys.stdout.write(f"facts {json.dumps(facts)}\n")
