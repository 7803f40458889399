"""What is disturbed is what was asked for, keyed by trial and step, and nothing else."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core.data import Array, Ref, Trial
from hocket.core.specs import ActionSpec, TaskInfo
from hocket.errors import ConfigError, HocketError, UsageError
from hocket.workers.env.factors import parse_factors, split_arms
from hocket.workers.env.live_env import LiveEnv
from hocket.workers.env.perturbation import Perturbation, Scene, blurred
from hocket.workers.env.simulator_model import find_model, model_digest
from support.commands import run_here

TRIAL = Trial(suite="s", task="t", seed=3)
IMAGE = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
STATE = np.linspace(-1, 1, 5).astype(np.float32)
SEEN = {"observation/image": IMAGE, "observation/state": STATE, "observation/count": np.arange(3)}


def disturbed(text: str, trial: Trial = TRIAL, step: int = 4) -> dict[str, Array]:
    return dict(Perturbation(parse_factors(text), trial).observation(SEEN, step))


@pytest.mark.parametrize(
    "factor", ["image:blur=2", "image:noise=0.1", "image:occlude=0.2", "image:blank"]
)
def test_a_disturbed_picture_is_a_picture_and_all_else_stays(factor: str) -> None:
    before = IMAGE.copy()
    found = disturbed(factor)
    image = found["observation/image"]
    assert (image.shape, image.dtype) == (IMAGE.shape, np.uint8)
    assert not np.array_equal(image, IMAGE)
    assert np.array_equal(IMAGE, before), "the env's own picture"
    assert found["observation/state"] is STATE


def test_the_amounts_mean_what_they_say() -> None:
    hidden = disturbed("image:occlude=0.25")["observation/image"]
    assert np.mean((hidden == 0).all(axis=2)) == pytest.approx(0.25, abs=0.02)
    assert not disturbed("image:blank")["observation/image"].any()
    many = np.zeros(20_000)
    drawn = Perturbation(parse_factors("state:noise=0.5"), TRIAL).observation({"k": many}, 0)["k"]
    assert drawn.std() == pytest.approx(0.5, rel=0.05)
    flat = np.full((9, 9, 3), 77, np.uint8)
    assert np.array_equal(blurred(flat, 3.0), flat), "edges are not darkened"
    point = np.zeros((31, 31, 1), np.uint8)
    point[15, 15] = 255
    spread = blurred(point, 1.0)
    assert spread[15, 15] == pytest.approx(255 / (2 * np.pi), abs=3)


def test_noise_is_keyed_by_trial_step_and_key() -> None:
    text = "state:noise=0.1+image:noise=0.1"
    first, again = disturbed(text), disturbed(text)
    for key in ("observation/state", "observation/image"):
        assert np.array_equal(first[key], again[key])
        assert not np.array_equal(first[key], disturbed(text, step=5)[key])
        other = Trial(suite="s", task="t", seed=4)
        assert not np.array_equal(first[key], disturbed(text, trial=other)[key])


def test_dirt_stays_where_it_is_for_an_episode() -> None:
    a, b = (disturbed("image:occlude=0.1", step=step)["observation/image"] for step in (0, 9))
    assert np.array_equal(a, b)


def test_actions_stay_inside_of_their_space() -> None:
    low, high = -np.ones(2), np.ones(2)
    spec = ActionSpec(size=2, kind="box", shape=(2,), dtype="<f4", low=low, high=high)
    noisy = Perturbation(parse_factors("action:noise=9"), TRIAL)
    found = noisy.action(np.zeros(2, np.float32), 0, spec)
    assert found.dtype == np.float32
    assert (np.abs(found) <= 1).all()
    assert found.any()
    spec = ActionSpec(size=1, kind="discrete", shape=(), dtype="<i8", low=low[:1], high=high[:1])
    with pytest.raises(UsageError, match="Box"):
        noisy.action(np.zeros((), np.int64), 0, spec)


def test_prompts_are_emptied_or_taken_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.yaml"
    file.write_text("lift the cup: raise the mug\nt: do it\n")
    task = TaskInfo(name="t")
    other = Perturbation(parse_factors(f"prompt:file={file}"), TRIAL)
    assert other.prompt("lift the cup", task) == "raise the mug"
    assert other.prompt("anything", task) == "do it"
    assert Perturbation(parse_factors("prompt:empty"), TRIAL).prompt("lift", task) == ""
    with pytest.raises(UsageError, match="has none for"):
        other.prompt("anything", TaskInfo(name="other"))


def test_a_mujoco_model_is_told_by_what_it_is_and_not_by_where_it_was_loaded(
    tmp_path: Path,
) -> None:
    mujoco = pytest.importorskip("mujoco")
    ramp = np.arange(9, dtype=np.float32)
    head = np.array([3, 3], np.int32).tobytes()

    def digest(folder: str, heights: Array, mass: float) -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "field").write_bytes(head + heights.tobytes())
        asset = f"<hfield name='f' size='1 1 1 1' file='{tmp_path / folder}/field'/>"
        body = f"<body><geom size='1' mass='{mass}'/></body>"
        text = f"<mujoco><asset>{asset}</asset><worldbody>{body}</worldbody></mujoco>"
        return model_digest(mujoco.MjModel.from_xml_string(text))

    first = digest("here", ramp, 1.0)
    assert digest("there", ramp, 1.0) == first
    assert digest("heavier", ramp, 2.0) != first
    assert digest("other", ramp[::-1].copy(), 1.0) != first


def test_env_whose_properties_raise_has_no_model() -> None:
    class Odd:
        @property
        def model(self) -> object:
            raise ValueError("not built yet")

    assert find_model(Odd()) is None


def test_cameras_and_lights_of_a_mujoco_model_are_moved_from_where_they_were() -> None:
    mujoco = pytest.importorskip("mujoco")
    text = "<mujoco><worldbody><camera name='c' pos='0 0 1'/><light diffuse='.8 .8 .8'/>"
    model = mujoco.MjModel.from_xml_string(text + "</worldbody></mujoco>")

    class Env:
        class _sim:
            pass

    env = Env()
    env._sim.model = model  # type: ignore[attr-defined]
    assert find_model(env) is model
    assert find_model(object()) is None
    scene, places = Scene(), []
    for seed in (0, 1, 0):
        trial = Trial(suite="s", task="t", seed=seed)
        Perturbation(parse_factors("camera:shift=0.05+light:dim=0.5"), trial).scene(model, scene)
        places.append(model.cam_pos.copy())
        assert np.linalg.norm(model.cam_pos - [0, 0, 1]) == pytest.approx(0.05)
        assert model.light_diffuse[0] == pytest.approx([0.4] * 3)
    assert np.array_equal(places[0], places[2])
    assert not np.array_equal(places[0], places[1])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("image:blurr=2", "Did you mean 'image:blur'"),
        ("image:blur", "needs a number"),
        ("image:blur=much", "needs a number"),
        ("image:blur=-1", "above 0"),
        ("image:occlude=2", "at most 1"),
        ("image:blank=1", "takes no value"),
        ("prompt:file=absent.yaml", "cannot be read"),
        ("light:dim=nan", "above 0"),
        (",", "No factor"),
    ],
)
def test_what_cannot_be_disturbed_is_told(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        split_arms(text)


class Echo:
    """Does what it sees: whatever is disturbed shows in the rewards."""

    spec = hocket.PolicySpec(chunk_length=4, action_size=4, batch_invariant=True)

    def infer(self, batch: Any) -> Any:
        state = batch.arrays["observation/state"][:, :1]
        return np.sin(9 * state[:, None]).repeat(4, axis=1).repeat(4, axis=2)

    def close(self) -> None: ...


def outcomes(**settings: Any) -> list[tuple[int, float]]:
    report = hocket.evaluate(env="toy:count", policy=Echo(), episodes=4, **settings)
    assert not report.overall.errors
    return sorted((e.trial.seed, e.total_reward) for e in report.episodes)


def test_a_disturbed_run_is_the_same_in_any_number_of_lanes() -> None:
    text = "state:noise=0.3+action:noise=0.3"
    alone = outcomes(lanes=1, perturb=text)
    assert alone == outcomes(lanes=3, perturb=text)
    assert alone != outcomes(lanes=1)


@pytest.mark.parametrize("text", ["image:blank", "camera:shift=1"])
def test_what_is_not_there_cannot_be_disturbed(text: str) -> None:
    with pytest.raises(HocketError, match=r"disturbs nothing|no MuJoCo model"):
        outcomes(lanes=1, perturb=text)


def test_rows_of_a_batched_simulator_are_refused() -> None:
    with pytest.raises(UsageError, match="batched"):
        hocket.evaluate(
            env="support.row_toys:RowToys", policy="zero", perturb="state:noise=1", episodes=1
        )


@pytest.mark.slow
def test_arms_are_run_beside_a_clean_one_and_compared_with_it(tmp_path: Path) -> None:
    arguments = ("eval", "--env", "toy:count", "--policy", "scripted", "--episodes", "6")
    arms = ("--lanes", "1", "--perturb", "state:noise=2,prompt:empty", "--out", "arms")
    done = run_here(tmp_path, *arguments, *arms)
    assert done.returncode == 0, done.stderr
    assert "state:noise=2" in done.stdout
    assert "95 % interval" in done.stdout
    folders = {path.name for path in (tmp_path / "arms").iterdir() if path.is_dir()}
    assert folders == {"clean", "state-noise-2", "prompt-empty"}
    assert "prompt:empty" in (tmp_path / "arms" / "jobs.html").read_text()
    trial = Trial(suite="toy:count", task="count", seed=2).id
    replayed = run_here(tmp_path, "replay", "arms/state-noise-2", trial)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    # The file of an arm makes that arm again, alone.
    again = run_here(tmp_path, "eval", "--config", "arms/state-noise-2", "--out", "again")
    assert again.returncode == 0, again.stderr
    assert "perturb: state:noise=2" in (tmp_path / "again" / "run.yaml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("text", ["camera:shift=0.05", "light:dim=0.5"])
def test_a_disturbed_scene_of_metaworld_looks_different_and_is_the_same_again(text: str) -> None:
    name = "metaworld:reach-v3"
    config = {"cameras": ("corner2",), "size": 64, "render": "fast"}
    trial = Trial(suite=name, task="reach-v3", seed=0)
    with contextlib.closing(LiveEnv({name: Ref(name=name, config=config)}, 0)) as env:
        env.build(trial.suite, trial.task)
        disturbance = Perturbation(parse_factors(text), trial)
        clean, first, again = (
            env.reset(trial, one)["observation/image"].astype(float)
            for one in (None, disturbance, disturbance)
        )
    assert np.array_equal(first, again)
    assert np.abs(first - clean).mean() > 3
    assert (first.mean() < clean.mean()) or text.startswith("camera")
