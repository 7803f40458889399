import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cli.flags.values import (
    format_bytes,
    parse_bytes,
    parse_counts,
    parse_latency,
    parse_names,
    parse_pairs,
)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2G", 2 << 30),
        ("512M", 512 << 20),
        ("1.5g", 3 << 29),
        ("1500000", 1500000),
        ("2GiB", 2 << 30),
    ],
)
def test_memory_is_read_with_its_unit(text: str, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize("text", ["", "two", "-1G", "2X", "1..5G"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no amount of memory"):
        parse_bytes(text)


@given(st.integers(0, 1 << 50))
def test_memory_that_is_shown_reads_back_within_its_digits(amount: int) -> None:
    back = parse_bytes(format_bytes(amount))
    assert back is not None
    assert abs(back - amount) <= 0.006 * amount


def test_counts_double_inside_a_range_and_end_at_its_end() -> None:
    assert parse_counts("1:128") == (1, 2, 4, 8, 16, 32, 64, 128)
    assert parse_counts("3:20") == (3, 6, 12, 20)
    assert parse_counts("4,8,9") == (4, 8, 9)
    assert parse_counts("32") == (32,)


@pytest.mark.parametrize("text", ["", "0:8", "8:2:1", "a", "4,2", "1,,2"])
def test_what_are_no_counts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no numbers"):
        parse_counts(text)


def test_a_latency_is_a_line_or_points() -> None:
    assert parse_latency("75+8.5B") == {1: pytest.approx(0.0835), 2: pytest.approx(0.092)}
    assert parse_latency("20") == {1: pytest.approx(0.02), 2: pytest.approx(0.02)}
    assert parse_latency("1=75,8=116") == {1: pytest.approx(0.075), 8: pytest.approx(0.116)}


@pytest.mark.parametrize("text", ["", "fast", "1=2=3", "0=5", "75+B+B"])
def test_what_is_no_latency_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no latency"):
        parse_latency(text)


def test_names_are_separated_by_commas() -> None:
    assert parse_names("metaworld:mt10, gym:CartPole-v1,") == ("metaworld:mt10", "gym:CartPole-v1")


@pytest.mark.parametrize(
    "words", [["a.b", "c/d", "e", "f"], ["a.b=c/d", "e=f"], ["{a.b: c/d, e: f}"]]
)
def test_pairs_are_given_by_words_by_equations_or_as_yaml(words: list[str]) -> None:
    assert parse_pairs(words) == {"a.b": "c/d", "e": "f"}


@pytest.mark.parametrize("words", [["a"], ["a", "b", "c"], ["{a"]])
def test_what_are_no_pairs_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_pairs(words)
