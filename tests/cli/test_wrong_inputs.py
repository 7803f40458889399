"""Wrong inputs to every verb: each is told in a few words, without a traceback, and with an exit
code that says so."""

from pathlib import Path

import pytest

from support.commands import run_here

FILES = {
    "mine.py": """
import gymnasium, numpy as np
class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))
    max_steps = 2
    def __init__(self, weight: float = 1.0): ...
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}
class NoPolicy: ...
def raises(): raise OSError("the dongle is not plugged in")
number = 3
class OddRule(Env):
    success_rule = "sometimes"
class NoReset:
    action_space = Env.action_space
class Texts(Env):
    action_space = gymnasium.spaces.Text(3)
""",
    "broken.py": "class Env(:\n",
    "empty.yaml": "",
    "list.yaml": "- 1\n- 2\n",
    "bad.yaml": "env: [unclosed\n",
    "odd.yaml": "env: [gym:CartPole-v1]\npolicy: zero\nlanez: 3\n",
    "types.yaml": "env: [gym:CartPole-v1]\npolicy: zero\nepisodes: many\n",
    "jobs.yaml": "runs: {a: {env: 'gym:CartPole-v1', policy: zero, episodes: -1}}\n",
    "jobs2.yaml": "shared: {policy: zero}\n",
    "jobs3.yaml": "runs: {'../a': {env: 'gym:CartPole-v1', policy: zero}}\n",
    "jobs4.yaml": "runs: {a: 3}\n",
    "jobs5.yaml": "shared: {policy_config: 3}\nruns: {a: {policy: zero, policy_config: {}}}\n",
    "notes.txt": "hello\n",
}
CART = "--env gym:CartPole-v1 --policy zero"
TOY = "--env toy:count --policy random --lanes 1 --episodes 2 --video none"
MINE = "--env mine.py:Env --policy zero"
WRONG = [
    # names
    "evaluate",
    "--evn x",
    "eval",
    "eval --policy zero",
    "eval --env gym:CartPole-v1",
    "eval --env --policy zero",
    "eval --env '' --policy zero",
    "eval --env , --policy zero",
    "eval --env gym: --policy zero",
    "eval --env gym:CartPoel-v1 --policy zero",
    "eval --env gym:absent/Thing-v0 --policy zero",
    "eval --env gym:nothing_there:Thing-v0 --policy zero --episodes 1 --lanes 1",
    "eval --env gym:CartPole-v1,gym:CartPole-v1 --policy zero",
    "eval --env metaworld:raech-v3 --policy zero",
    "eval --env metaworld: --policy zero --dry-run",
    "eval --env toy:nothing --policy zero --dry-run",
    "eval --env libero:nothing --policy zero --dry-run",
    "eval --env mine.py --policy zero",
    "eval --env mine.py: --policy zero",
    "eval --env mine.py:Evn --policy zero",
    "eval --env absent.py:Env --policy zero",
    "eval --env absent:Env --policy zero",
    "eval --env broken.py:Env --policy zero",
    "eval --env broken:Env --policy zero",
    "eval --env notes.txt --policy zero",
    "eval --env mine:number --policy zero",
    "eval --env mine:OddRule --policy zero --lanes 1 --episodes 1",
    "eval --env mine:NoReset --policy zero --lanes 1 --episodes 1",
    "eval --env mine:Texts --policy zero --lanes 1 --episodes 1",
    "eval --env mine:Env --policy mine:NoPolicy --lanes 1 --episodes 1",
    "eval --env mine:Env --policy mine:raises --lanes 1 --episodes 1",
    "eval --env mine:Env --policy mine:absent",
    "eval --env mine:Env --policy zerro",
    "eval --env mine:Env --policy openpi: --lanes 1 --episodes 1",
    "eval --env mine:Env --policy openpi://localhost:port --lanes 1 --episodes 1",
    "eval --env mine:Env --policy openpi://127.0.0.1:9 --policy.ready-timeout-s 0.1 --lanes 1",
    "eval --env mine:Env --policy lerobot:absent/folder --lanes 1 --episodes 1",
    pytest.param(
        "eval --env mine:Env --policy torch:absent.pt --lanes 1 --episodes 1",
        marks=pytest.mark.slow,  # imports torch
    ),
    "eval --env mine:Env --policy trained:absent --lanes 1 --episodes 1",
    # values
    f"eval {CART} --episodes 0",
    f"eval {CART} --episodes two",
    f"eval {CART} --episodes 1.5",
    f"eval {CART} --lanes 0",
    f"eval {CART} --lanes many",
    f"eval {CART} --seed -",
    f"eval {CART} --seed -1 --lanes 1 --episodes 1",
    f"eval {CART} --seed 99999999999999999999 --lanes 1 --episodes 1",
    f"eval {CART} --max-steps 0",
    f"eval {CART} --replan 0",
    f"eval {CART} --replan 99 --lanes 1 --episodes 1",
    f"eval {CART} --ensemble -1 --replan 0",
    f"eval {CART} --retries -1",
    f"eval {CART} --step-timeout 0",
    f"eval {CART} --worker-memory lots",
    f"eval {CART} --video sometimes",
    f"eval {CART} --record everything",
    f"eval {CART} --until decided",
    f"eval {CART} --until decided --against absent",
    f"eval {CART} --alpha 2",
    f"eval {CART} --lanez 3",
    f"eval {CART} --env.kwargs notjson",
    f"eval {CART} --env.kwargs [1] --lanes 1",
    f'eval {CART} --env.kwargs {{"colour":1}} --lanes 1 --episodes 1',
    f"eval {CART} --env.success-rule sometimes",
    f"eval {CART} --env.max-steps 0",
    f"eval {CART} --policy.chunk-length 0 --lanes 1",
    f"eval {CART} --policy.nothing 0",
    f"eval {MINE} --env.weight heavy",
    f"eval {CART} --runtime moon",
    f"eval {CART} --runtime ssh: --episodes 1",
    f"eval {CART} --env-python absent/python",
    f"eval {CART} --env-python notes.txt",
    f"eval {CART} --policy-python absent/python --lanes 1 --episodes 1",
    f"eval {CART} --policy-devices cuda:0 --lanes 1 --episodes 1",
    # files and folders
    "eval --config absent.yaml",
    "eval --config empty.yaml",
    "eval --config list.yaml",
    "eval --config bad.yaml",
    "eval --config odd.yaml",
    "eval --config types.yaml",
    "eval --config notes.txt",
    "eval --config .",
    "eval --jobs absent.yaml",
    "eval --jobs list.yaml",
    "eval --jobs jobs.yaml",
    "eval --jobs jobs2.yaml",
    "eval --jobs jobs3.yaml",
    "eval --jobs jobs4.yaml",
    "eval --jobs jobs5.yaml",
    f"eval {CART} --out notes.txt",
    f"eval {CART} --out full",
    # the other verbs
    "resume",
    "resume absent",
    "resume full",
    "resume notes.txt",
    "report absent",
    "report full",
    "compare",
    "compare absent full",
    "compare full",
    "video absent",
    "video full",
    "video run --camera nowhere",
    "export run --to hdf5 --out d.h5 --camera nowhere",
    "export run --to hdf5 --out d.h5 --push a/b",
    "export run --to lerobot --out d --push nothing",
    "card run --out notes.txt/x",
    "watch full --port 99999",
    "export absent --to lerobot",
    "export full --to lerobot",
    "export full --to nowhere",
    "export full",
    "replay absent",
    "replay full nothing",
    "collect --env gym:CartPole-v1 --policy zero",
    "collect --env gym:CartPole-v1 --policy zero --to nowhere",
    "train --env gym:CartPole-v1",
    "train --env gym:CartPole-v1 --policy nothing",
    "train --env gym:CartPole-v1 --policy actor --algorithm dreams",
    "train --config absent.yaml",
    "check --env gym:CartPole-v1",
    "check --env gym:CartPole-v1 --policy nothing",
    "check --env gym:CartPole-v1 --policy zero --task absent",
    "serve",
    "serve --policy nothing",
    "serve --policy zero --port ninety",
    "serve --policy mine:raises",
    "serve --policy mine:NoPolicy",
    "serve --policy zero --metadata absent.yaml",
    "serve --policy zero --host 0.0.0.0",
    "serve --policy zero --port 99999",
    "plan --lanes none",
    "plan --lanes 4 --cores 0",
    "plan --latency fast",
    "plan --execute-s -1",
    "image",
    "image --env nothing",
    "doctor --env-python absent/python",
    "doctor everything",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("wrong")
    for name, text in FILES.items():
        (found / name).write_text(text)
    run_here(found, "eval", *words(f"{TOY} --out run"))
    (found / "full").mkdir()
    (found / "full" / "thing.txt").write_text("mine")
    return found


def words(line: str) -> list[str]:
    return [word.strip("'") for word in line.split(" ")]


@pytest.mark.parametrize("line", WRONG)
def test_wrong_input_is_told_without_a_traceback(folder: Path, line: str) -> None:
    before = set(folder.glob("**/*"))
    done = run_here(folder, *words(line))
    said = done.stderr + done.stdout
    assert done.returncode in (1, 2), said
    assert "Traceback" not in said
    assert said.strip(), "silence"
    left = {path for path in folder.glob("**/*") if "__pycache__" not in path.parts} - before
    # SQLite leaves two files beside a ledger that was only read.
    assert not any(path.is_file() and "sqlite-" not in path.name for path in left), left
