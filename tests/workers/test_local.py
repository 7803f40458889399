"""Worker processes: how they are born, what they inherit, and that they never stay behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.core.data import Ref
from hocket.workers.local.runtime import LocalRuntime
from hocket.workers.notices import LaneFailed, LanesBegun, LanesExecuted, LanesUp
from support.processes import DEADLINE_S, alive, children, wait_gone
from support.rig import Rig

pytestmark = pytest.mark.heavy

TELLING = """
import json, os, sys
import numpy as np

class Box:
    def __init__(self):
        self.shape, self.dtype = (2,), np.float32
        self.low, self.high = -np.ones(2, np.float32), np.ones(2, np.float32)

class Telling:
    action_space, observation_space = Box(), Box()

    def reset(self, seed=None):
        self.steps = 0
        return {"state": np.zeros(3), "prompt": self.tell()}, {}

    def step(self, action):
        self.steps += 1
        return {"state": np.full(3, float(np.sum(action)))}, 1.0, False, self.steps == 9, {}

    def close(self):
        pass

    def tell(self):
        return json.dumps({
            "prefix": sys.prefix,
            "path": sys.path,
            "packages": sorted({name.partition(".")[0] for name in sys.modules}),
            "msgpack": sys.modules["msgpack"].Packer.__module__,
            "index": os.environ["HOCKET_WORKER_INDEX"],
            "prepared": PREPARED,
            "threads": os.environ["OMP_NUM_THREADS"] + os.environ["OPENBLAS_NUM_THREADS"],
            "is_batch": os.sched_getscheduler(0) == os.SCHED_BATCH,
            "session": os.getsid(0),
            "pid": os.getpid(),
            "fds": len(os.listdir("/proc/self/fd")),
            "inheritable": [fd for fd in map(int, os.listdir("/proc/self/fd"))
                            if fd > 2 and is_inheritable(fd)],
        })

PREPARED = []

def is_inheritable(fd):
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False  # The listing's own.

def make():
    return Telling()

make.prepare_worker = PREPARED.append
"""

FLEET = """
import sys, time
sys.path.insert(0, {rig!r})
import numpy as np
from support.processes import children
from support.rig import Rig
from hocket.workers.notices import LanesBegun
import os

with Rig(lanes=2, toy={toy!r}) as rig:
    rig.begin(lane=0)
    rig.wait(LanesBegun)
    rig.begin(lane=1)
    rig.wait(LanesBegun)
    rig.execute(np.zeros((4, 4)), lane=0)
    print(*children(os.getpid()), flush=True)
    while True:
        rig.hear()
"""


@pytest.fixture
def telling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ref:
    (tmp_path / "telling_envs.py").write_text(TELLING)
    monkeypatch.chdir(tmp_path)
    return Ref(name="telling_envs:make")


def told(rig: Rig, lane: int = 0) -> dict[str, Any]:
    rig.begin(lane=lane, task="make")
    found: dict[str, Any] = json.loads(rig.wait(LanesBegun).prompts[0])
    return found


@pytest.fixture
def foreign_python(tmp_path: Path) -> str:
    """A virtual environment with numpy and nothing else."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True
    )
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    here = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (here / name).exists():
            (packages / name).symlink_to(here / name)
    return str(tmp_path / "venv" / "bin" / "python")


def test_foreign_interpreter_needs_numpy_and_nothing_of_hockets(
    telling: Ref, foreign_python: str
) -> None:
    with Rig(suite=telling, python=foreign_python) as rig:
        facts = told(rig)
        rig.action_size = 2
        rig.execute(np.full((4, 2), 0.25))
        assert rig.wait(LanesExecuted).steps == [4]
        assert rig.fleet.arrays(0)["observation/state"].tolist() == [0.5] * 3
    assert facts["prefix"] == str(Path(foreign_python).parents[1])
    assert facts["msgpack"] == "msgpack.fallback"
    ours = str(Path(np.__file__).parents[1])
    assert ours not in facts["path"]
    assert os.getcwd() in facts["path"]
    assert not any("hocket" in entry for entry in facts["path"])
    for package in ("gymnasium", "torch", "pyarrow", "av", "scipy"):
        assert package not in facts["packages"]


def test_foreign_interpreter_describes_its_suite(telling: Ref, foreign_python: str) -> None:
    with Rig(suite=telling, python=foreign_python) as rig:
        assert [task.name for task in rig.fleet.describe("toy", DEADLINE_S)] == ["make"]


def test_foreign_interpreter_without_numpy_says_so(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True
    )
    with Rig(python=str(tmp_path / "bare" / "bin" / "python")) as rig:
        failed = rig.wait(LaneFailed)
    assert failed.kind == "WorkerStart"
    assert "No module named 'numpy'" in failed.message


def test_worker_knows_its_index_before_its_adapter_is_used(telling: Ref) -> None:
    with Rig(lanes=3, suite=telling) as rig:
        facts = [told(rig, lane) for lane in range(3)]
    assert sorted(fact["index"] for fact in facts) == ["0", "1", "2"]
    assert [fact["prepared"] for fact in facts] == [[int(fact["index"])] for fact in facts]


def test_replaced_worker_takes_over_the_index(telling: Ref) -> None:
    with Rig(lanes=2, suite=telling) as rig:
        first = told(rig, 0)
        os.kill(first["pid"], signal.SIGKILL)
        rig.wait(LanesUp, lambda notice: 0 in notice.lanes)
        again = told(rig, 0)
    assert again["index"] == first["index"]
    assert again["pid"] != first["pid"]


def test_worker_has_one_thread_a_session_of_its_own_and_no_siblings_files(telling: Ref) -> None:
    with Rig(lanes=4, suite=telling) as rig:
        facts = [told(rig, lane) for lane in range(4)]
    assert {fact["threads"] for fact in facts} == {"11"}
    # They do not interrupt the parent when it wakes them, unless somebody set another policy.
    assert all(fact["is_batch"] for fact in facts) or os.sched_getscheduler(0) != os.SCHED_OTHER
    assert all(fact["session"] == fact["pid"] for fact in facts)
    assert len({fact["fds"] for fact in facts}) == 1
    assert all(fact["inheritable"] == [] for fact in facts)


def test_worker_imports_nothing_heavy(telling: Ref) -> None:
    with Rig(suite=telling) as rig:
        packages = told(rig)["packages"]
    for package in ("torch", "gymnasium", "scipy", "pyarrow", "av", "rich", "tyro", "yaml"):
        assert package not in packages


def test_only_what_a_named_adapter_declares_is_preloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "probe.py"
    script.write_text(
        "import json\n"
        "from hocket.workers.suites import preloads\n"
        "import sys\n"
        "print(json.dumps([preloads(['toy:count', 'no.such:thing']),"
        " 'no' in sys.modules]))\n"
    )
    monkeypatch.chdir(tmp_path)
    found = subprocess.run(
        [sys.executable, str(script)], check=True, capture_output=True, text=True, timeout=100
    )
    assert json.loads(found.stdout) == [["hocket.testing.toy"], False]


@pytest.mark.parametrize("toy", [{}, {"hang_at": 2}], ids=["waiting", "hanging"])
def test_every_process_is_gone_after_the_main_ones_sigkill(
    toy: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "fleet_script.py"
    rig = str(Path(__file__).parents[1])
    script.write_text(FLEET.format(rig=rig, toy=toy))
    main = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    pids = [int(pid) for pid in main.stdout.readline().split()]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    main.kill()
    main.wait()
    main.stdout.close()
    wait_gone(pids)


def test_ctrl_c_reaches_the_main_process_alone_which_ends_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "fleet_script.py"
    rig = str(Path(__file__).parents[1])
    script.write_text(FLEET.format(rig=rig, toy={"hang_at": 2}))
    main = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert main.stdout is not None
    pids = [int(pid) for pid in main.stdout.readline().split()]
    os.killpg(main.pid, signal.SIGINT)
    _, errors = main.communicate(timeout=DEADLINE_S)
    assert errors.count("KeyboardInterrupt") == 1
    assert not any(alive(pid) for pid in pids)


def test_children_of_envs_die_with_their_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parent_envs.py").write_text(
        "import subprocess\n"
        "from hocket.testing.toy import ToyConfig, ToyEnv\n"
        "class Parent(ToyEnv):\n"
        "    def __init__(self):\n"
        "        super().__init__('count', ToyConfig(kill_at=2))\n"
        "        self.prompt = str(subprocess.Popen(['sleep', '600']).pid)\n"
        "def make():\n"
        "    return Parent()\n"
    )
    monkeypatch.chdir(tmp_path)
    with Rig(suite=Ref(name="parent_envs:make")) as rig:
        rig.begin(task="make")
        sleeper = int(rig.wait(LanesBegun).prompts[0])
        assert alive(sleeper)
        rig.execute(np.zeros((4, 4)))
        rig.wait(LaneFailed)
        wait_gone([sleeper])


def test_runtime_can_be_used_again_after_it_was_closed() -> None:
    runtime = LocalRuntime()
    before = set(children(os.getpid()))
    for _ in range(2):
        with Rig(runtime=runtime) as rig:
            rig.wait(LanesUp)
        assert set(children(os.getpid())) <= before
    runtime.close()
