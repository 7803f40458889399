"""What is checked of `hocket lerobot-eval` inside an interpreter that has LeRobot:
`python lerobot_eval_checks.py CHECK FOLDER`. Each check is a function; it fails by raising. Run by
test_lerobot_eval.py."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

warnings.simplefilter("ignore")

from hocket.adapters.policies.lerobot.folder import mend_torchvision  # noqa: E402

mend_torchvision()

from hocket import cli  # noqa: E402
from hocket.core import plugins  # noqa: E402
from support import lerobot_models as models  # noqa: E402

SEED = int(np.random.default_rng().integers(1, 10_000))
LEVELS = ("per_task", "per_group", "overall")


def ours(out: Path, *flags: str, code: int | None = 0) -> str:
    """What hocket says; its result lies in the folder."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        found = cli.main(["lerobot-eval", *flags, f"--output_dir={out}"])
    assert found == code or (code is None and found), said.getvalue()
    return said.getvalue()


def theirs(out: Path, *flags: str) -> dict:
    from lerobot.scripts.lerobot_eval import main

    out.mkdir()
    sys.argv = ["lerobot-eval", *flags, f"--output_dir={out}"]
    main()
    return info(out)


def info(out: Path) -> dict:
    return json.loads((out / "eval_info.json").read_text())


def same(one: dict, other: dict) -> None:
    """Theirs and ours: each episode, under the same keys."""
    for theirs, ours in zip(one["per_task"], other["per_task"], strict=True):
        named = [(each["task_group"], each["task_id"]) for each in (theirs, ours)]
        assert named[0] == named[1], named
        assert theirs["metrics"]["successes"] == ours["metrics"]["successes"], (theirs, ours)
        for key in ("sum_rewards", "max_rewards"):
            given = [each["metrics"][key] for each in (theirs, ours)]
            np.testing.assert_allclose(*given, rtol=1e-9, atol=1e-9, err_msg=f"{key}, seed {SEED}")
        assert set(theirs["metrics"]) <= set(ours["metrics"])
    assert set(one["overall"]) <= set(other["overall"])
    assert set(one["per_group"]) == set(other["per_group"])
    for group, means in one["per_group"].items():
        assert set(means) <= set(other["per_group"][group])
        assert means["pc_success"] == other["per_group"][group]["pc_success"]


def policy_flags(place: Path, **shape) -> list[str]:
    folder = models.save("act", place / "act", **shape)
    flags = [f"--policy.path={folder}", "--policy.device=cpu", "--policy.n_action_steps=3"]
    return [*flags, "--eval.n_episodes=3", "--eval.batch_size=1", f"--seed={SEED}"]


def pusht_is_as_lerobots_and_is_resumed(place: Path) -> None:
    flags = policy_flags(place, size=96, states=2, moves=2, cameras=("observation.image",))
    flags += ["--env.type=pusht", "--env.episode_length=25"]
    ours(place / "ours", *flags)
    same(theirs(place / "theirs", *flags), info(place / "ours"))
    found = info(place / "ours")
    low, high = found["overall"]["pc_success_interval"]
    assert low <= found["overall"]["pc_success"] <= high
    films = found["overall"]["video_paths"]
    assert films
    assert all(Path(film).is_file() for film in films)
    assert found["per_task"][0]["metrics"]["seeds"] == [SEED, SEED + 1, SEED + 2]
    again = info(place / "ours")
    ours(place / "ours", *flags)  # nothing is left to run
    assert info(place / "ours") == again
    said = ours(place / "ours", *flags, "--policy.n_action_steps=2", code=cli.USAGE)
    assert "holds a run of other flags" in said, said


def envs_of_third_parties_are_as_in_lerobot(place: Path) -> None:
    """Of an installed package, and of a repository of the hub that is trusted."""
    from support.hub_stand_in import serve_model

    site = place / "site"
    about = site / "lerobot_env_dot-1.0.dist-info"
    (site / "lerobot_env_dot").mkdir(parents=True)
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lerobot_env_dot\nVersion: 1\n")
    source = Path(__file__).with_name("lerobot_third_party_env.py")
    (site / "lerobot_env_dot" / "__init__.py").write_text(source.read_text())
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    flags = policy_flags(place, states=2, moves=2, cameras=("observation.images.camera1",))
    flags += ['--rename_map={"observation.images.eye": "observation.images.camera1"}']
    dots = [*flags, "--env.type=dot"]
    ours(place / "ours", *dots)
    same(theirs(place / "theirs", *dots), info(place / "ours"))
    package = importlib.import_module("lerobot_env_dot")
    with serve_model(package.HUB, {"env.py": package.ENV_PY.encode()}) as (endpoint, _):
        import huggingface_hub.constants as constants

        constants.ENDPOINT = endpoint
        constants.HUGGINGFACE_CO_URL_TEMPLATE = (
            endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        constants.HF_HUB_OFFLINE = False
        hub = [*flags, "--env.type=dots_of_the_hub"]
        said = ours(place / "refused", *hub, code=cli.USAGE)
        assert "Refusing to execute remote code" in said, said
        hub.append("--trust_remote_code=true")
        ours(place / "hub", *hub)
        constants.HF_HUB_OFFLINE = False
        same(theirs(place / "hub-theirs", *hub), info(place / "hub"))


def what_cannot_be_done_is_said(place: Path) -> None:
    flags = policy_flags(place, size=96, states=2, moves=2, cameras=("observation.image",))
    pusht = [*flags, "--env.type=pusht"]
    for more, words in {
        ("--eval.recording=true",): "hocket export --to lerobot",
        ("--policy.use_amp=true",): "use_amp is not done here",
        ("--env.obs_type=nothing",): "nothing",
    }.items():
        assert words in ours(place / "none", *pusht, *more, code=cli.USAGE)
    for kind, words in {
        "robocasa": "robocasa",
        "vlabench": "VLABench",
        "robotwin": "robotwin",
        "gym_manipulator": "gym_manipulator",
    }.items():
        # Some are missed at once, others when the first episode begins.
        said = ours(place / kind, *flags, f"--env.type={kind}", code=None)
        assert words.lower() in said.lower(), said


def native_envs_show_what_lerobots_do(place: Path) -> None:
    """hocket's MetaWorld and LIBERO beside LeRobot's own objects, each in a process of its own, as
    each has a renderer."""
    tasks = {"metaworld": "drawer-open-v3,assembly-v3,push-v3"}
    if "LIBERO_CONFIG_PATH" in os.environ:
        tasks["libero"] = "libero_spatial"
    for kind, task in tasks.items():
        settings = {"task": task, "task_ids": [0, 4]} if kind == "libero" else {"task": task}
        found = []
        for native in ("1", ""):
            words = [__file__, "--play", kind, json.dumps(settings), native, str(SEED)]
            file = place / f"{kind}{native}.npz"
            subprocess.run([sys.executable, *words, str(file)], check=True, timeout=500)
            found.append(np.load(file))
        for key in found[1].files:
            one, other = (each[key] for each in found)
            # LeRobot turns LIBERO's quaternion in float32, hocket in float64.
            far = 1e-6 if kind == "libero" and key.endswith("state") else 0
            one = np.asarray(one, other.dtype)  # LeRobot's states are float32
            if key.endswith("image") and "late" not in key:
                # Where LeRobot's first picture has a goal depends on the end of the episode before.
                # Few pixels are others, at the edge of the goal.
                far = 255 if np.mean(one != other) < 1e-4 else 0
                one, other = one.astype(int), other.astype(int)
            np.testing.assert_allclose(one, other, atol=far, rtol=0, err_msg=f"{key} {SEED}")


def play(kind: str, settings: str, native: str, seed: str, file: str) -> None:
    first = int(seed)
    if kind == "libero" and not native:
        import libero.libero

        libero.libero._assets_path_cache = os.environ["LIBERO_ASSETS"]  # else downloaded
    config = {"settings": settings, "native": bool(native), "first_seed": first}
    suite = plugins.build("envs", f"lerobot:{kind}", config)
    suite.prepare_worker(0)
    seen, rng = {}, np.random.default_rng(first)
    for task in suite.tasks():
        env = suite.make(task.name)
        for trial in (first, first + 1):
            arrays, _ = env.reset(seed=trial)
            rewards = []
            for _ in range(6):
                action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
                rewards.append(env.advance(action)[0])
            late = env.observe()
            seen |= {f"{task.name} {trial} {key}": value for key, value in arrays.items()}
            seen |= {f"{task.name} {trial} late {key}": value for key, value in late.items()}
            seen[f"{task.name} {trial} rewards"] = rewards
            seen[f"{task.name} limit"] = task.max_steps
        env.close()
    np.savez(file, **seen)
    sys.stdout.flush()
    os._exit(0)  # an OpenGL context cannot be freed at exit


if __name__ == "__main__":
    if sys.argv[1] == "--play":
        play(*sys.argv[2:])
    globals()[sys.argv[1]](Path(sys.argv[2]))
