from __future__ import annotations

from pathlib import Path

import pytest

from hocket.core.data import Ref
from hocket.errors import ConfigError, EnvError, UnknownNameError
from hocket.workers.suites import open_suite, preloads

MODULE = """
from hocket.testing.toy import ToyConfig, ToyEnv, ToySuite

PREPARED = []
MADE = []

class MyEnv(ToyEnv):
    prompt = "stack the blocks"
    max_steps = 70
    control_rate = 10.0
    success_rule = "any"

    def __init__(self, size: int = 8):
        super().__init__("count", ToyConfig(image_size=size))
        MADE.append(self)

def make(size: int = 8):
    return MyEnv(size)

make.prepare_worker = PREPARED.append

def suite():
    return ToySuite("image")

def number():
    return 5
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toys_of_a_suite.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "toys_of_a_suite", raising=False)


@pytest.mark.parametrize("name", ["make", "MyEnv"])
def test_env_factory_becomes_a_suite_of_one_task_with_the_envs_own_attributes(name: str) -> None:
    (task,) = open_suite(Ref(name=f"toys_of_a_suite:{name}")).tasks()
    assert task.name == name
    assert task.prompt == "stack the blocks"
    assert (task.max_steps, task.control_rate, task.success_rule) == (70, 10.0, "any")


def test_env_that_told_what_it_is_is_used_and_later_ones_are_new() -> None:
    suite = open_suite(Ref(name="toys_of_a_suite:make", config={"size": 9}))
    first, second = suite.make("make"), suite.make("make")
    made = __import__("toys_of_a_suite").MADE
    assert made == [first, second]
    assert first is not second
    assert second.unwrapped.config.image_size == 9  # type: ignore[attr-defined]


def test_one_task_suite_knows_no_other_task() -> None:
    with pytest.raises(UnknownNameError, match="make"):
        open_suite(Ref(name="toys_of_a_suite:make")).make("other")


def test_factory_may_give_a_whole_suite() -> None:
    assert [task.name for task in open_suite(Ref(name="toys_of_a_suite:suite")).tasks()] == [
        "image"
    ]


def test_factory_of_something_else_is_refused() -> None:
    with pytest.raises(EnvError, match="int"):
        open_suite(Ref(name="toys_of_a_suite:number"))


def test_unknown_setting_is_an_error() -> None:
    with pytest.raises(ConfigError, match="sise"):
        open_suite(Ref(name="toys_of_a_suite:make", config={"sise": 3}))


def test_worker_is_prepared_before_anything_is_built() -> None:
    open_suite(Ref(name="toys_of_a_suite:make"), worker=4)
    module = __import__("toys_of_a_suite")
    assert module.PREPARED == [4]


def test_preloads_are_those_of_named_adapters() -> None:
    assert preloads(["toy:count", "toys_of_a_suite:make"]) == ["hocket.testing.toy"]
