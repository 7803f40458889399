"""`hocket lerobot-eval`: LeRobot's own command, with its flags and its results, run by hocket's
engine in an interpreter that has LeRobot."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hocket
from hocket.cli import INTERRUPTED
from hocket.errors import MissingExtraError, UsageError
from hocket.system.waits import awaiting
from hocket.workers.local import bootstrap

if TYPE_CHECKING:
    from hocket.runs.config import EvalConfig

_PYTHON = "--python"
"""The one flag that is not LeRobot's: an interpreter that has it."""
_VENV = "venvs/lerobot/bin/python"
_START = """\
import sys
sys.path[0] = {beside!r}
import bootstrap
sys.path[0] = ""
bootstrap.load_package("hocket", {package!r})
from hocket.cli import main
sys.exit(main())
"""
"""Another interpreter is lent this hocket, and nothing else that is installed here."""


def run(arguments: Sequence[str]) -> int:
    """Evaluate, or go on with what the same command began; 1 where trials ended as errors."""
    given = [part for word in arguments for part in _parted(word)]
    if _PYTHON in given or importlib.util.find_spec("lerobot") is None:
        place = given.index(_PYTHON) if _PYTHON in given else len(given)
        python = "".join(given[place + 1 : place + 2]) or _VENV
        return _run_in(python, [*given[:place], *given[place + 2 :]])
    with awaiting("LeRobot's imports"):
        chosen = _parsed(given)
    out = Path(chosen.output_dir).absolute()
    config = _config_of(chosen, out, has_size=any("eval.batch_size" in word for word in given))
    code = _evaluate(config, out / "run")
    if code != INTERRUPTED:
        from hocket.exports import export_run

        result = out / "eval_info.json"
        result.unlink(missing_ok=True)
        export_run(out / "run", "eval_info", result)
        sys.stdout.write(f"{result}\n")
    return code


def _parted(word: str) -> list[str]:
    """A word of the command line; our own flag apart from its value."""
    return word.split("=", 1) if word.startswith(f"{_PYTHON}=") else [word]


def _run_in(python: str, arguments: Sequence[str]) -> int:
    """Become the same command in another interpreter."""
    if not Path(python).is_file():
        raise MissingExtraError(
            f"LeRobot is not installed in {sys.executable}, and there is no {python}: "
            f"hocket venv lerobot builds one; or name an interpreter that has it: {_PYTHON} PATH."
        )
    beside, package = (str(Path(each.__file__ or "").parent) for each in (bootstrap, hocket))
    program = _START.format(beside=beside, package=package)
    os.execv(python, [python, "-c", program, "lerobot-eval", *arguments])


def _parsed(arguments: Sequence[str]) -> Any:
    """LeRobot's own configuration of an evaluation; its parser reads the command line itself."""
    from hocket.adapters.policies.lerobot.folder import mend_torchvision

    mend_torchvision()
    from lerobot.configs import parser
    from lerobot.configs.eval import EvalPipelineConfig
    from lerobot.utils.import_utils import register_third_party_plugins

    register_third_party_plugins()
    sys.argv = ["lerobot-eval", *arguments]

    def same(cfg: Any) -> Any:
        return cfg

    same.__annotations__["cfg"] = EvalPipelineConfig
    try:
        chosen = parser.wrap()(same)()
    except (ValueError, OSError, KeyError) as exc:  # draccus's own are ValueErrors
        raise UsageError(f"LeRobot refuses these flags: {exc}") from exc
    policy = chosen.policy
    why = ""
    if policy is None or policy.pretrained_path is None:
        why = "it evaluates what was saved: give --policy.path"
    elif chosen.eval.recording:
        why = "--eval.recording is left out: hocket export --to lerobot writes a run as a dataset"
    elif policy.use_amp:
        why = "--policy.use_amp is not done here: every policy is asked in the dtype it has"
    elif policy.type == "xvla":
        why = "X-VLA's own processors of the env are not: hocket eval --policy lerobot:... asks it"
    elif chosen.seed is None:
        why = "trials have seeds: give --seed"
    if why:
        raise UsageError(f"hocket lerobot-eval cannot run this: {why}.")
    return chosen


def _config_of(chosen: Any, out: Path, *, has_size: bool) -> EvalConfig:
    import draccus

    from hocket.adapters.policies.lerobot.folder import default_key
    from hocket.runs.config import EvalConfig

    env, theirs = chosen.env, {new: old for old, new in chosen.rename_map.items()}
    usual = draccus.encode(type(env)())
    fields = {key: value for key, value in draccus.encode(env).items() if value != usual.get(key)}
    reads = ("VISUAL", "STATE", "ENV")
    keys = {
        name: default_key(theirs.get(name, name))
        for name, feature in chosen.policy.input_features.items()
        if feature.type.name in reads and ".empty_camera_" not in name
    }
    return EvalConfig(
        env=(f"lerobot:{env.type}",),
        env_config={
            "settings": json.dumps(fields, sort_keys=True),
            "first_seed": chosen.seed,
            "module": type(env).__module__,
            "trust_remote_code": chosen.trust_remote_code,
        },
        policy=f"lerobot:{_policy_of(chosen.policy, out)}",
        policy_config={"device": str(chosen.policy.device), "keys": keys},
        episodes=chosen.eval.n_episodes,
        seed=chosen.seed,
        lanes=chosen.eval.batch_size if has_size else "auto",
    )


def _policy_of(policy: Any, out: Path) -> str:
    """The policy's folder or id; where flags change its configuration, a folder with the changes,
    and links to all else."""
    import draccus
    from lerobot.configs.policies import PreTrainedConfig

    from hocket.adapters.policies.lerobot.folder import find_folder

    path = str(policy.pretrained_path)
    saved = PreTrainedConfig.from_pretrained(path)
    saved.device, saved.pretrained_path = policy.device, policy.pretrained_path
    if policy == saved:
        return str(Path(path).absolute()) if Path(path).is_dir() else path
    text = json.dumps(draccus.encode(policy, PreTrainedConfig), indent=2)
    copy = out / f"policy-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    copy.mkdir(parents=True, exist_ok=True)
    for file in find_folder(path).absolute().iterdir():
        (copy / file.name).unlink(missing_ok=True)
        if file.name != "config.json":
            (copy / file.name).symlink_to(file)
    (copy / "config.json").write_text(text)
    return str(copy)


def _evaluate(config: EvalConfig, folder: Path) -> int:
    """Run the trials that the folder has no episodes of, and tell the report."""
    from hocket.cli.eval import finish
    from hocket.cli.flags.plan import RunPlan
    from hocket.records.folder import RunFolder
    from hocket.results.showing.progress import ProgressDisplay
    from hocket.runs.run import Run
    from hocket.system import machine

    is_new = not RunFolder.at(folder).ledger.exists()
    with (
        ProgressDisplay(age_s=machine.process_age_s()) as progress,
        Run.new(config, folder) if is_new else Run.open(folder) as planned,
    ):
        if planned.config != config:
            raise UsageError(f"{folder} holds a run of other flags: give another --output_dir.")
        plan = RunPlan(runs={"": config}, out=folder)
        return finish(planned, progress, folder, plan, None)
