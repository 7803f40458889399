"""A policy folder as LeRobot saves it: checked first, then loaded, without the network."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.adapters import hub
from hocket.core.specs import ArraySpec, PolicySpec
from hocket.errors import ConfigError, MissingExtraError
from hocket.system.venvs.table import VENVS

if TYPE_CHECKING:
    from hocket.adapters.policies.lerobot import LeRobotConfig

WEIGHTS = "model.safetensors"
_ADAPTER, _ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""What a LoRA fine-tune has in place of weights."""
_PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

ACTION = "action"
IMAGES = "observation.images"
_ANY_SIZE = ("smolvla", "pi0", "pi05", "pi0_fast", "xvla", "groot", "wall_x")
"""Policies that scale images themselves."""
ALIASES = {"observation.images.image2": "observation/wrist_image"}
"""LeRobot's names for what hocket's envs call otherwise: LIBERO's wrist camera."""
WHOLE_CHUNKS = (
    *("act", "diffusion", "vqbet", "tdmpc", "sac", "gaussian_actor", "multi_task_dit", "smolvla"),
    *("pi0", "pi05", "xvla", "eo1", "evo1", "vla_jepa", "wall_x"),
)
"""Policies whose configuration tells the length of what they answer. Others are asked."""
_SILENT = ("pi0", "pi05", "pi0_fast")
_LONGEST = 600
"""Characters of torch's message that are shown."""

REFUSED = {
    "reward_classifier": "it is a reward model and answers with no actions",
    "sarm": "it is a reward model and answers with no actions",
    "lingbot_va": "it keeps a cache for the whole batch that cannot be split by lane",
}
"""Policies that cannot be asked in batches safely, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    policy: Any
    config: Any
    preprocess: Any
    postprocess: Any
    base: tuple[str, Path] | None = None
    """The name and the folder of the policy that a fine-tune began with."""


def find_folder(argument: str) -> Path:
    """The folder that a path means, or an id of Hugging Face's hub."""
    if not argument:
        raise ConfigError("Say which policy: lerobot:path/to/checkpoint.")
    folder = Path(argument).expanduser()
    if folder.is_dir():
        inner = folder / "pretrained_model"
        return inner if not (folder / "config.json").exists() and inner.is_dir() else folder
    if folder.exists():
        raise ConfigError(f"{argument!r} is a file; name the folder that LeRobot saved.")
    if is_on_hub(argument):
        return hub.fetch(argument)
    raise ConfigError(f"There is no policy folder {argument!r}.")


def is_on_hub(argument: str) -> bool:
    """True if a name can only mean a repository of Hugging Face's hub."""
    path = Path(argument).expanduser()
    if path.exists() or argument.startswith((".", "/", "~")) or path.name == "pretrained_model":
        return False
    return hub.is_id(argument)


def check_folder(folder: Path) -> dict[str, Any]:
    """The folder's configuration as it stands, once everything needed is there."""
    try:
        plain: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except OSError as exc:
        raise ConfigError(f"{folder} is no LeRobot policy: it has no config.json.") from exc
    except ValueError as exc:
        raise ConfigError(f"{folder / 'config.json'} is no JSON: {exc}") from exc
    kind = plain.get("type") if isinstance(plain, dict) else None
    if not isinstance(kind, str):
        raise ConfigError(f"{folder / 'config.json'} does not say its policy's type.")
    if kind in REFUSED:
        raise ConfigError(f"A {kind!r} policy cannot be evaluated in batches: {REFUSED[kind]}.")
    weights = _ADAPTER_WEIGHTS if is_adapter(folder) else WEIGHTS
    if not (folder / weights).is_file():
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLED)
        if pickled:
            raise ConfigError(
                f"{folder} has its weights as {pickled[0]}, a pickle, which can run code when it "
                f"is read: refused. Where you trust it, load it with LeRobot and save it again "
                f"(policy.save_pretrained), which writes {weights}."
            )
        raise ConfigError(f"{folder} has no {weights}.")
    for name in _PROCESSORS:
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder} has no {name}: it was saved by a LeRobot older than 0.4, which kept "
                f"normalization inside of the weights. Convert it with LeRobot's "
                f"migrate_policy_normalization."
            )
    return plain


def is_adapter(folder: Path) -> bool:
    """True for a fine-tune that has only what differs from the policy that it began with."""
    return (folder / _ADAPTER).is_file() and not (folder / WEIGHTS).is_file()


def find_base(folder: Path, given: str) -> tuple[str, Path]:
    """The policy that a fine-tune began with: its name, and its folder."""
    plain = json.loads((folder / _ADAPTER).read_text())
    name = given or plain.get("base_model_name_or_path") or ""
    if not name:
        raise ConfigError(
            f"{folder} is a fine-tune, and its {_ADAPTER} does not say of what. Name that policy: "
            f"--policy.base PATH."
        )
    if not given and (folder / name).is_dir():
        name = str(folder / name)
    elif not given and plain.get("revision") and is_on_hub(name):
        name = f"{name}@{plain['revision']}"
    try:
        base = find_folder(name)
    except ConfigError as exc:
        raise ConfigError(
            f"{folder} is a fine-tune of {name!r}, which {_ADAPTER} names, and has only what "
            f"differs. {exc} --policy.base PATH tells where that policy is now."
        ) from exc
    if not (base / WEIGHTS).is_file():
        raise ConfigError(f"{folder} is a fine-tune of {name!r}, which has no {WEIGHTS}.")
    return name, base


def load(folder: Path, settings: LeRobotConfig, device: str) -> Loaded:
    """The policy on its device, in evaluation mode, and its processors."""
    base = find_base(folder, settings.base) if is_adapter(folder) else None
    # Before anything of Hugging Face's is imported: what is missing must fail, not be fetched.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    mend_torchvision()
    try:
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
        from lerobot.utils.import_utils import register_third_party_plugins
    except ImportError as exc:
        raise MissingExtraError(
            f"LeRobot cannot be imported in {sys.executable}: {exc}. Name an interpreter that has "
            f"it, --policy-python PATH: hocket venv lerobot builds one."
        ) from exc
    register_third_party_plugins()
    plain = check_folder(folder)
    refuse_unpatched(plain["type"])
    config = _read_config(folder, plain, PreTrainedConfig)
    config.device = device
    config.pretrained_path = folder  # or some begin with a backbone's weights, of the hub
    # Weights come from the folder; what a config names here would be downloaded for nothing.
    if hasattr(config, "pretrained_backbone_weights"):
        config.pretrained_backbone_weights = None
    if hasattr(config, "load_vlm_weights"):
        config.load_vlm_weights = False
    changes: dict[str, Any] = {"device_processor": {"device": device}}
    if settings.vlm:
        if hasattr(config, "vlm_model_name"):
            config.vlm_model_name = settings.vlm
        changes["tokenizer_processor"] = {"tokenizer_name": settings.vlm}
        changes["action_tokenizer_processor"] = {"paligemma_tokenizer_name": settings.vlm}
        if hasattr(config, "text_tokenizer_name"):
            config.text_tokenizer_name = settings.vlm
    weights = folder if base is None else base[1]
    policy = _load_weights(get_policy_class(config.type), weights, config)
    if base is not None:
        policy = _adapted(policy, folder)
    # LeRobot refuses changes to steps that the pipeline has not.
    steps = json.loads((folder / _PROCESSORS[0]).read_text()).get("steps", [])
    names = {step.get("registry_name") for step in steps}
    try:
        before, after = make_pre_post_processors(
            config,
            pretrained_path=str(folder),
            preprocessor_overrides={name: changes[name] for name in changes if name in names},
            postprocessor_overrides={},
        )
    except (ImportError, KeyError, TypeError, ValueError) as exc:
        raise _unreadable(folder / _PROCESSORS[0], exc) from exc
    return Loaded(policy=policy, config=config, preprocess=before, postprocess=after, base=base)


def _read_config(folder: Path, plain: Mapping[str, Any], parser: Any) -> Any:
    """The policy's configuration. Each version writes all its fields, and refuses those that it has
    not got itself; one that is null says nothing."""
    kind = plain["type"]
    try:
        fields = {each.name for each in dataclasses.fields(parser.get_choice_class(kind))} | {
            "type"
        }
        kept = {key: value for key, value in plain.items() if value is not None or key in fields}
        with tempfile.TemporaryDirectory() as copy:
            (Path(copy) / "config.json").write_text(json.dumps(kept))
            return parser.from_pretrained(copy)
    except Exception as exc:  # the parser's errors have no common root
        if isinstance(exc, KeyError):
            known = ", ".join(sorted(parser.get_known_choices()))
            exc = KeyError(f"it knows no policy {kind!r}, but {known}")
        raise _unreadable(folder / "config.json", exc) from exc


def _unreadable(file: Path, exc: Exception) -> ConfigError:
    """What to say of a file that another LeRobot may have saved."""
    here = version("lerobot")
    other = "lerobot-0.4" if _release() >= (0, 5) else "lerobot"
    return ConfigError(
        f"LeRobot {here} cannot read {file}, perhaps since another version saved it: "
        f"{str(exc)[:_LONGEST]} Another venv has {VENVS[other].about.split(',')[0]}: hocket venv "
        f"{other}, then --policy-python venvs/{other}/bin/python."
    )


def _release() -> tuple[int, ...]:
    return tuple(map(int, version("lerobot").split(".")[:2]))


def refuse_unpatched(kind: str) -> None:
    """Raise where LeRobot's pi0 would: before 0.5 it needs a transformers patched for it."""
    if kind not in _SILENT or _release() >= (0, 5):
        return
    try:
        importlib.import_module("transformers.models.siglip.check")
    except ImportError:
        raise ConfigError(
            f"LeRobot {version('lerobot')} runs {kind!r} only on a transformers that was patched "
            f"for it. LeRobot 0.5 and later need no patch: hocket venv lerobot, then "
            f"--policy-python venvs/lerobot/bin/python."
        ) from None


def _load_weights(kind: Any, folder: Path, config: Any) -> Any:
    """The policy with the folder's weights. LeRobot's pi0 and its kin only print that weights could
    not be loaded and go on with random ones: whether they were is watched here."""
    refusal, differs = "the file cannot be read", False
    original = kind.load_state_dict

    def watched(self: Any, *parts: Any, **named: Any) -> Any:
        nonlocal refusal, differs
        differs = True
        try:
            result = original(self, *parts, **named)
        except RuntimeError as exc:
            refusal = str(exc)
            raise
        refusal, differs = "", bool(result.missing_keys or result.unexpected_keys)
        return result

    kind.load_state_dict = watched
    policy = None
    try:
        policy = kind.from_pretrained(str(folder), config=config, strict=True)
    except RuntimeError as exc:
        # Keys are not what it failed at where they all fit, or where a device is full.
        if not differs or type(exc) is not RuntimeError:
            raise
        refusal = str(exc)
    finally:
        kind.load_state_dict = original
    if policy is None or (refusal and config.type in _SILENT):
        raise ConfigError(
            f"{folder / WEIGHTS} does not fit the policy that config.json describes: "
            f"{refusal[:_LONGEST]}"
        )
    return policy


def _adapted(policy: Any, folder: Path) -> Any:
    """The policy with a fine-tune's layers in it. Keys that the fine-tune lacks or has too many of
    would be warned of, and the policy be another."""
    try:
        from peft import PeftModel, get_peft_model_state_dict
    except ImportError as exc:
        raise MissingExtraError(
            f"{folder} is a LoRA fine-tune, which takes the package 'peft' in {sys.executable}: "
            f"hocket venv lerobot builds an interpreter that has it."
        ) from exc
    from safetensors import safe_open

    try:
        wrapped = PeftModel.from_pretrained(policy, str(folder))
    except (RuntimeError, ValueError, TypeError, KeyError) as exc:
        raise ConfigError(
            f"{folder / _ADAPTER_WEIGHTS} does not fit the policy that it names: "
            f"{str(exc)[:_LONGEST]}"
        ) from exc
    with safe_open(folder / _ADAPTER_WEIGHTS, "pt") as file:
        differing = set(file.keys()) ^ set(get_peft_model_state_dict(wrapped))
    if differing:
        raise ConfigError(
            f"{folder / _ADAPTER_WEIGHTS} does not fit the policy that it names: only one of them "
            f"has {min(differing)!r}, and {len(differing)} in all."
        )
    return wrapped.get_base_model().eval()


def mend_torchvision() -> None:
    """Make a torchvision importable that was built for another device than torch, in interpreters
    that `hocket venv` did not build."""
    import torch

    try:
        import torchvision
    except RuntimeError:
        if hasattr(torch.ops.torchvision, "nms"):
            raise  # its operators are there
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        importlib.import_module("hocket.system.venvs.torchvision_operators")
        import torchvision  # noqa: F401
    except ImportError:
        return


def keys_of(config: Any, given: Mapping[str, str]) -> dict[str, str]:
    """Our key of each input, and LeRobot's."""
    wanted = [
        name
        for name, feature in config.input_features.items()
        if feature.type.name in ("VISUAL", "STATE", "ENV") and ".empty_camera_" not in name
    ]
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        raise ConfigError(f"The policy has no input {unknown[0]!r}; it reads: {', '.join(wanted)}.")
    keys: dict[str, str] = {}
    for name in wanted:
        ours = given.get(name) or default_key(name)
        if ours in keys:
            raise ConfigError(f"{keys[ours]!r} and {name!r} would both read {ours!r}; set keys.")
        keys[ours] = name
    return keys


def default_key(name: str) -> str:
    """`observation.images.wrist_image` is `observation/wrist_image`."""
    if name in ALIASES:
        return ALIASES[name]
    for prefix in (f"{IMAGES}.", "observation."):
        if name.startswith(prefix):
            return f"observation/{name[len(prefix) :]}"
    return f"observation/{name}"


def spec_of(config: Any, keys: Mapping[str, str], settings: LeRobotConfig) -> PolicySpec:
    """What a policy reads and gives."""
    inputs: dict[str, ArraySpec] = {}
    cameras = []
    for ours, theirs in keys.items():
        feature = config.input_features[theirs]
        if feature.type.name == "VISUAL":
            cameras.append(ours)
            channels, height, width = feature.shape
            size = (-1, -1) if config.type in _ANY_SIZE else (height, width)
            inputs[ours] = ArraySpec(shape=(*size, channels), dtype="|u1")
        else:
            inputs[ours] = ArraySpec(shape=tuple(feature.shape), dtype="<f4")
    length, steps = _lengths(config)
    return PolicySpec(
        chunk_length=length,
        action_size=int(config.output_features[ACTION].shape[0]),
        inputs=inputs,
        cameras=tuple(cameras),
        history=config.n_obs_steps or 1,
        max_batch=settings.max_batch,
        replan=min(steps, length),
    )


def _lengths(config: Any) -> tuple[int, int]:
    """Actions in a chunk, and how many of them LeRobot executes."""
    if config.type == "diffusion":
        return config.n_action_steps, config.n_action_steps
    if config.type == "vqbet":
        return config.action_chunk_size, config.action_chunk_size
    if config.type == "tdmpc":
        steps = max(config.n_action_steps, config.n_action_repeats)
        return steps, steps
    length = int(getattr(config, "chunk_size", 0) or getattr(config, "n_action_steps", 0) or 1)
    return length, int(getattr(config, "n_action_steps", length) or length)
