"""Starting is cheap because of what is not imported; benchmarks/engine/startup.py has the times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "scipy", "metaworld", "mujoco", "pyarrow", "av", "gymnasium", "pandas"}


def imported_by(statement: str) -> set[str]:
    script = (
        f"import json, sys, io\nsys.stdout = io.StringIO()\n{statement}\n"
        "sys.__stdout__.write(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "statement",
    [
        "import hocket",
        "from hocket.cli import main\nassert main(['--help']) == 0",
        "from hocket.cli import main\nassert main(['--version']) == 0",
    ],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    modules = imported_by(statement)
    assert "hocket" in modules
    assert not HEAVY & modules


def test_asking_a_verb_for_help_imports_no_tensor_library() -> None:
    statement = (
        "from hocket.cli import main\n"
        "try:\n    main(['eval', '--env', 'metaworld:mt10', '--policy', 'reference', '--help'])\n"
        "except SystemExit as exit_:\n    assert exit_.code == 0"
    )
    heavy = {"torch", "scipy", "mujoco", "pyarrow", "av", "typeguard"}
    assert not heavy & imported_by(statement)


def test_a_small_run_imports_only_what_it_needs(tmp_path: Path) -> None:
    words = "eval --env tests.support.point_env:PointEnv --policy random --lanes 2 --episodes 2"
    words += f" --max-steps 3 --video none --out {tmp_path / 'run'}"
    modules = imported_by(f"from hocket.cli import main\nassert main({words.split()}) == 0")
    assert "pyarrow" in modules
    assert not {"torch", "scipy", "av", "typeguard", "asyncio"} & modules


def test_the_first_line_comes_before_anything_heavy(tmp_path: Path) -> None:
    words = "eval --env metaworld:mt10 --policy lerobot:user/model --policy-python python3 --out"
    statement = (
        "import os\n"
        "class First(io.StringIO):\n"
        "    def write(self, text):\n"
        "        print(json.dumps([text, *sys.modules]), file=sys.__stdout__, flush=True)\n"
        "        os._exit(0)\n"
        "sys.stderr = First()\n"
        f"from hocket.cli import main\nmain({[*words.split(), str(tmp_path / 'run')]})"
    )
    modules = imported_by(statement)
    assert any("waiting for imports" in each for each in modules)
    assert not {*HEAVY, "rich", "typeguard", "asyncio"} & modules


def test_metaworld_comes_without_the_viewers_of_gymnasium_until_one_is_used() -> None:
    modules = imported_by(
        "import hocket.adapters.envs.metaworld.env\n"
        "from gymnasium.envs.mujoco import mujoco_rendering as viewers\n"
        "assert not {'glfw.library', 'imageio.core'} & set(sys.modules)\n"
        "assert viewers.imageio.imwrite"
    )
    assert "imageio.core" in modules
    assert "glfw.library" not in modules
