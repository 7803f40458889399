from __future__ import annotations

import numpy as np
import pytest
import torch

from hocket.train.collect.policy import Staging

CPU = torch.device("cpu")


def arrays(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {
        "image": rng.integers(0, 255, (rows, 3, 5, 3), np.uint8),
        "state": rng.normal(size=(rows, 7)),
        "done": rng.random(rows) < 0.5,
        "task": np.arange(rows),
        "noise": rng.normal(size=(rows, 3)).astype(np.float32)[:, ::-1],
    }


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("rows", [(1, 5, 3), (4, 4)])
def test_what_goes_up_comes_back_bit_by_bit(rows: tuple[int, ...], is_packed: bool) -> None:
    staging = Staging(CPU, is_packed=is_packed)
    for count in rows:
        given = {key: np.ascontiguousarray(array) for key, array in arrays(count).items()}
        back = staging.download(staging.upload(given))
        assert list(back) == list(given)
        for key, array in given.items():
            assert back[key].dtype == array.dtype
            np.testing.assert_array_equal(back[key], array)


def test_arrays_and_tensors_need_not_be_contiguous() -> None:
    staging = Staging(CPU, is_packed=True)
    given = arrays(3)
    there = staging.upload(given)
    there["image"] = there["image"].movedim(-1, 1)
    back = staging.download(there)
    np.testing.assert_array_equal(back["noise"], given["noise"])
    np.testing.assert_array_equal(back["image"], np.moveaxis(given["image"], -1, 1))


def test_what_came_back_is_the_callers_own() -> None:
    staging = Staging(CPU, is_packed=True)
    first = staging.download({"value": torch.ones(4), "task": torch.arange(4)})
    staging.download({"value": torch.zeros(4), "task": torch.arange(4)})
    np.testing.assert_array_equal(first["value"], np.ones(4))
    first["value"][2] = 7.0
    assert all(array.flags.aligned for array in first.values())
