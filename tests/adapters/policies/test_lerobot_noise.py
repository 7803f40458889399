from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hocket.adapters.policies.lerobot.noise import KeyedNoise  # noqa: E402

SEEDS = (11, 22, 33)
CPU = torch.device("cpu")


def draws(rows: int):
    """Every way in which policies draw, for a batch of so many rows."""
    return {
        "randn": torch.randn(rows, 2, 3),
        "randn of a tuple": torch.randn((rows, 2)),
        "randn by name": torch.randn(size=(rows, 2), dtype=torch.float64),
        "rand": torch.rand(rows, 4),
        "like": torch.randn_like(torch.zeros(rows, 5, dtype=torch.float64)),
        "rand like": torch.rand_like(torch.zeros(rows, 5)),
        "normal": torch.normal(0.0, 2.0, (rows, 3)),
        "normal by name": torch.normal(mean=1.0, std=1.0, size=(rows, 3)),
        "normal of tensors": torch.normal(torch.zeros(rows, 2), torch.ones(rows, 2)),
        "multinomial": torch.multinomial(torch.ones(rows * 4, 7), 1).reshape(rows, 4),
        "bernoulli": torch.bernoulli(torch.full((rows, 9), 0.5)),
        "in place": torch.empty(rows, 3).normal_(),
        "uniform in place": torch.empty(rows, 3).uniform_(-1, 1),
    }


@pytest.mark.parametrize("row", range(3))
def test_a_row_draws_the_same_alone_and_in_a_batch(row):
    with KeyedNoise(SEEDS, CPU):
        together = draws(3)
    with KeyedNoise(SEEDS[row : row + 1], CPU):
        alone = draws(1)
    for name, values in together.items():
        assert torch.equal(values[row], alone[name][0]), name
        assert values.dtype == alone[name].dtype


def test_rows_of_other_seeds_draw_otherwise():
    with KeyedNoise((1, 2), CPU):
        for name, values in draws(2).items():
            if name != "bernoulli":
                assert not torch.equal(values[0], values[1]), name


def test_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    with KeyedNoise(SEEDS, CPU):
        draws(3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_has_no_row_for_each_lane_is_the_same_for_all():
    def shared(seeds):
        with KeyedNoise(seeds, CPU):
            return torch.randn(5), torch.rand(7, 2), torch.randn(())

    for one, other in zip(shared((1, 2)), shared((3, 4, 5)), strict=True):
        assert torch.equal(one, other)


def test_a_generator_of_the_policys_own_does_not_make_a_row_depend_on_its_batch():
    def drawn(seeds):
        own = torch.Generator().manual_seed(4)
        with KeyedNoise(seeds, CPU):
            return torch.randn(len(seeds), 2, generator=own), torch.randn(5, generator=own)

    together, shared = drawn(SEEDS)
    for row, seed in zip(together, SEEDS, strict=True):
        alone, again = drawn((seed,))
        assert torch.equal(alone[0], row)
        assert torch.equal(again, shared)
    assert torch.equal(shared, torch.randn(5, generator=torch.Generator().manual_seed(4)))


def test_a_context_inside_of_another_draws_by_its_own_seeds():
    with KeyedNoise((1,), CPU):
        expected = torch.randn(1, 4)
    with KeyedNoise((2, 3), CPU), KeyedNoise((1,), CPU):
        assert torch.equal(torch.randn(1, 4), expected)
