"""A torch module as a policy."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.adapters.policies.torch import TorchPolicy
from hocket.core import plugins
from hocket.core.contracts.policy import Replicas
from hocket.core.data import Batch, Row, Trial, noise_seed
from hocket.core.specs import ArraySpec
from hocket.errors import ChunkShapeError, ConfigError, UnknownNameError
from hocket.testing import check_policy

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

INPUTS = {"observation/state": ArraySpec(shape=(3,), dtype="float32")}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU"))]  # fmt: skip


class Head(torch.nn.Module):
    """A state to four actions of two numbers."""

    chunk_length = 4
    action_size = 2

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(width, 8)
        self.seen: list[int] = []

    def forward(self, observation: dict[str, Any]) -> Any:
        state = observation["observation/state"]
        self.seen.append(len(state))
        return self.linear(state).reshape(-1, 4, 2)


class Noisy(Head):
    """Draws noise from its seeds, row by row."""

    def forward(self, observation: dict[str, Any], noise_seeds: Any) -> Any:
        noise = torch.stack(
            [
                torch.randn(4, 2, generator=torch.Generator().manual_seed(int(seed)))
                for seed in noise_seeds
            ]
        )
        return super().forward(observation) + noise.to(noise_seeds.device)


class Looking(Head):
    """Says what it was given."""

    def forward(self, observation: dict[str, Any]) -> Any:
        self.given = dict(observation)
        return super().forward({"observation/state": observation["observation/state"].float()})


class Wrong(Head):
    def forward(self, observation: dict[str, Any]) -> Any:
        return {"actions": 1}


class Tied(torch.nn.Module):
    """Two names for one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(2, 2, bias=False)
        self.two = torch.nn.Linear(2, 2, bias=False)
        self.two.weight = self.one.weight

    def forward(self, observation: dict[str, Any]) -> Any:
        return self.two(observation["observation/state"])[:, None]


def make_head() -> Head:
    return Head()


head = Head()
not_a_module = dict
PATH = f"torch:{__name__}:"


def batch(size: int, *, pad: int = 0, **more: Any) -> Batch:
    rng = np.random.default_rng(size)
    rows = []
    for place in range(size):
        trial = Trial(suite="s", task="t", seed=place)
        seed = noise_seed(trial, 0)
        rows.append(Row(trial=trial, attempt=0, chunk=0, noise_seed=seed, prompt="", session=""))
    state = rng.normal(size=(size + pad, 3)).astype(np.float32)
    return Batch(arrays={"observation/state": state, **more}, rows=tuple(rows), pad=pad)


def expected(module: Any, asked: Batch) -> Any:
    with torch.inference_mode():
        state = torch.tensor(asked.arrays["observation/state"])
        return module.linear.cpu()(state).reshape(-1, 4, 2).numpy()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fixed_shapes", [False, True])
@pytest.mark.parametrize("make", [Head, Noisy])
def test_a_wrapped_module_keeps_the_contract(make: Any, fixed_shapes: bool, device: str) -> None:
    policy = TorchPolicy(
        make(),
        chunk_length=4,
        action_size=2,
        inputs=INPUTS,
        device=device,
        fixed_shapes=fixed_shapes,
        max_batch=8,
    )
    check_policy(policy, close=True)


@pytest.mark.parametrize("device", DEVICES)
def test_answers_are_the_modules_own_whatever_came_before(device: str) -> None:
    policy = TorchPolicy(Head(), chunk_length=4, device=device)
    for size in (5, 2, 7, 1):
        asked = batch(size)
        answer = policy.infer(asked)
        np.testing.assert_allclose(answer.values, expected(Head(), asked), atol=1e-6)
        assert answer.values.dtype == np.float32


def test_fixed_shapes_pad_to_powers_of_two_up_to_the_largest_batch() -> None:
    module = Head()
    policy = TorchPolicy(module, chunk_length=4, fixed_shapes=True, max_batch=6)
    assert policy.spec.batch_sizes == (1, 2, 4, 6)
    for size in (1, 2, 3, 5, 6):
        asked = batch(size)
        answer = policy.infer(asked)
        assert answer.values.shape == (size, 4, 2)
        np.testing.assert_allclose(answer.values, expected(Head(), asked), atol=1e-6)
    assert module.seen == [1, 2, 4, 6, 6]


def test_sizes_can_be_given_and_must_hold_the_largest_batch() -> None:
    module = Head()
    policy = TorchPolicy(module, chunk_length=4, fixed_shapes=(8,), max_batch=8)
    policy.infer(batch(3))
    assert module.seen == [8]
    with pytest.raises(ConfigError, match="at least max_batch 9"):
        TorchPolicy(module, chunk_length=4, fixed_shapes=(8,), max_batch=9)


def test_floats_take_the_modules_dtype_and_images_stay_bytes() -> None:
    module = Looking()
    policy = TorchPolicy(module, chunk_length=4)
    image = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    asked = batch(2, image=image, depth=np.ones((2, 1), np.float64), flag=np.ones((2, 1), bool))
    policy.infer(asked)
    kinds = {key: tensor.dtype for key, tensor in module.given.items()}
    assert kinds["image"] == torch.uint8
    assert kinds["depth"] == torch.float32
    assert kinds["flag"] == torch.bool
    np.testing.assert_array_equal(module.given["image"].numpy(), image)


def test_only_the_keys_that_it_reads_reach_the_module() -> None:
    module = Looking()
    TorchPolicy(module, chunk_length=4, inputs=INPUTS).infer(batch(2, other=np.zeros((2, 1))))
    assert list(module.given) == ["observation/state"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_dtype_of_choice_is_used_for_module_and_inputs(dtype: str) -> None:
    policy = TorchPolicy(Head(), chunk_length=4, dtype=dtype)
    asked = batch(3)
    answer = policy.infer(asked).values
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, expected(Head(), asked), atol=0.05)


def test_read_only_arrays_and_tensors_are_taken() -> None:
    policy = TorchPolicy(Head(), chunk_length=4, fixed_shapes=True)
    asked = batch(3)
    asked.arrays["observation/state"].setflags(write=False)
    one = policy.infer(asked).values
    tensors = {"observation/state": torch.tensor(asked.arrays["observation/state"])}
    other = policy.infer(Batch(arrays=tensors, rows=asked.rows)).values
    np.testing.assert_array_equal(one, other)


def test_a_changed_shape_gets_a_buffer_of_its_own() -> None:
    class Summing(torch.nn.Module):  # type: ignore[misc]
        def forward(self, observation: dict[str, Any]) -> Any:
            return observation["x"].flatten(1).sum(1)[:, None, None]

    policy = TorchPolicy(Summing(), chunk_length=1)
    rows = batch(2).rows
    for shape in ((2, 3), (2, 5), (2, 3, 2)):
        asked = Batch(arrays={"x": np.ones(shape)}, rows=rows)
        assert policy.infer(asked).values[:, 0, 0].tolist() == [np.prod(shape[1:])] * 2


def test_a_module_that_returns_no_tensor_is_told_what_to_return() -> None:
    with pytest.raises(ChunkShapeError, match=r"Wrong returned dict.*\[B, T, A\]"):
        TorchPolicy(Wrong(), chunk_length=4).infer(batch(2))


def test_replicas_answer_alike_and_share_no_parameters() -> None:
    policy = TorchPolicy(Head(), chunk_length=4, fixed_shapes=True, max_batch=8, replan=2)
    assert isinstance(policy, Replicas)
    first, second = policy.replicas(["cpu", "cpu"])
    assert first is policy
    assert second.spec == policy.spec
    asked = batch(3)
    np.testing.assert_array_equal(first.infer(asked).values, second.infer(asked).values)
    with torch.no_grad():
        first._module.linear.bias.add_(1.0)
    assert (first.infer(asked).values != second.infer(asked).values).any()


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=device):
        TorchPolicy(Head(), chunk_length=4, device=device)


def test_a_dtype_that_is_no_float_is_refused() -> None:
    with pytest.raises(ConfigError, match="int32"):
        TorchPolicy(Head(), chunk_length=4, dtype="int32")


def test_threads_are_set_when_asked_for() -> None:
    before = torch.get_num_threads()
    try:
        TorchPolicy(Head(), chunk_length=4, threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no other to wake")
def test_threads_hold_where_a_policy_is_asked() -> None:
    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(64, 64)

        def forward(self, observation: dict[str, Any]) -> Any:
            return self.linear(observation["observation/state"]).reshape(-1, 4, 16)

    before = torch.get_num_threads()
    try:
        policy = TorchPolicy(Wide(), chunk_length=4, threads=1)
        asked = Batch(
            arrays={"observation/state": np.ones((2, 64), np.float32)}, rows=batch(2).rows
        )
        more = []

        def ask() -> None:
            known = set(os.listdir("/proc/self/task"))
            policy.infer(asked)
            more.extend(set(os.listdir("/proc/self/task")) - known)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(before)
    assert more == []


def build(attribute: str, **config: Any) -> TorchPolicy:
    built = plugins.build("policies", PATH + attribute, config)
    assert isinstance(built, TorchPolicy)
    return built


@pytest.mark.parametrize("attribute", ["Head", "make_head", "head"])
def test_a_name_builds_a_class_a_factory_or_a_module(attribute: str) -> None:
    policy = build(attribute)
    assert (policy.spec.chunk_length, policy.spec.action_size) == (4, 2)
    asked = batch(2)
    np.testing.assert_allclose(policy.infer(asked).values, expected(Head(), asked), atol=1e-6)


def test_arguments_reach_the_class() -> None:
    assert build("Head", arguments='{"width": 5}')._module.linear.in_features == 5
    for wrong in ("{", "[1]"):
        with pytest.raises(ConfigError, match="JSON object"):
            build("Head", arguments=wrong)
    with pytest.raises(ConfigError, match="built already"):
        build("head", arguments='{"width": 5}')


def test_weights_come_from_a_safetensors_file(tmp_path: Path) -> None:
    state = {key: value + 1 for key, value in Head().state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    policy = build("Head", weights=str(tmp_path / "w.safetensors"))
    assert torch.equal(policy._module.linear.bias, state["linear.bias"])


def test_bfloat16_weights_are_read(tmp_path: Path) -> None:
    state = {key: value.to(torch.bfloat16) for key, value in Head().state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    policy = build("Head", weights=str(tmp_path / "w.safetensors"))
    assert torch.equal(policy._module.linear.bias, state["linear.bias"].float())


def test_tied_weights_need_only_one_of_their_names(tmp_path: Path) -> None:
    save_file({"one.weight": torch.ones(2, 2)}, tmp_path / "w.safetensors")
    policy = build("Tied", weights=str(tmp_path / "w.safetensors"))
    assert torch.equal(policy._module.two.weight, torch.ones(2, 2))


@pytest.mark.parametrize("change", [{"linear.bias": None}, {"more": torch.ones(1)},
                                    {"linear.bias": torch.ones(3)}])  # fmt: skip
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    state = {**Head().state_dict(), **change}
    kept = {key: value for key, value in state.items() if value is not None}
    save_file(kept, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"do not fit the module.*"):
        build("Head", weights=str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.ckpt"])
def test_pickled_checkpoints_are_refused_unread(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(ConfigError, match="can run code"):
        build("Head", weights=str(tmp_path / name))


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 8, struct.pack("<Q", 5) + b"nojson", struct.pack("<Q", 2) + b"[]",
     struct.pack("<Q", 57) + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}  ',
     struct.pack("<Q", 55) + b'{"a":{"dtype":"F9","shape":[4],"data_offsets":[0,16]}} '],
)  # fmt: skip
def test_a_broken_weights_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"w\.safetensors"):
        build("Head", weights=str(tmp_path / "w.safetensors"))


def test_a_missing_weights_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        build("Head", weights=str(tmp_path / "none.safetensors"))


def test_names_that_lead_to_no_module_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"not an nn\.Module"):
        build("not_a_module")
    with pytest.raises(UnknownNameError, match="Did you mean 'Head'"):
        build("Haed")
    with pytest.raises(ConfigError, match=r"torch:package\.module:attr"):
        plugins.build("policies", "torch:Head")


def test_importing_the_adapter_does_not_import_torch() -> None:
    code = (
        "import sys, hocket.adapters.policies.torch as t; t.load.Config();"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
