"""OpenPI's msgpack dialect, against golden bytes and hostile frames."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from hocket.core.codec import pack, unpack
from hocket.errors import WireError

GOLDEN_FLOAT32 = (
    bytes.fromhex("84c40b")
    + b"__ndarray__"
    + bytes.fromhex("c3c404")
    + b"data"
    + bytes.fromhex("c4080000803f00000040c405")
    + b"dtype"
    + bytes.fromhex("a33c6634c405")
    + b"shape"
    + bytes.fromhex("9102")
)

PLAIN_DTYPES = ("<f4", "<f8", "<f2", "|u1", "|b1", "<i4", "<i8", ">f4", "<U3", "|S4")


def test_array_of_two_floats_packs_to_the_bytes_openpi_sends() -> None:
    assert pack(np.array([1, 2], np.float32)) == GOLDEN_FLOAT32


def test_scalars_pack_as_openpi_packs_them() -> None:
    assert pack(np.float64(0.5)) == pack(0.5)
    assert pack(np.str_("pick")) == pack("pick")
    golden = b"\x83\xc4\x0d__npgeneric__\xc3\xc4\x04data\x07\xc4\x05dtype\xa3<i4"
    assert pack(np.int32(7)) == golden
    assert unpack(golden) == np.int32(7)
    assert type(unpack(golden)) is np.int32


def test_zero_dimensional_array_has_an_empty_shape() -> None:
    assert pack(np.array(3, np.uint8)).endswith(b"\xc4\x05shape\x90")
    assert unpack(pack(np.array(3, np.uint8))).shape == ()


def test_array_that_is_not_contiguous_is_sent_in_c_order() -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    turned = image[::-1, ::-1]
    assert pack(turned) == pack(turned.copy())
    assert np.array_equal(unpack(pack(turned.T)), turned.T)


def test_decoded_array_is_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        unpack(GOLDEN_FLOAT32)[0] = 3.0


@pytest.mark.parametrize("value", [np.zeros(2, complex), np.array([object()]), np.complex64(1)])
def test_dtype_that_openpi_refuses_is_refused(value: object) -> None:
    with pytest.raises(WireError, match="Unsupported dtype"):
        pack(value)


def test_value_that_is_no_data_is_refused_by_its_type() -> None:
    with pytest.raises(WireError, match="set"):
        pack({"a": {1, 2}})


def frame_of(**fields: object) -> bytes:
    given_fields = {"__ndarray__": True, "data": b"\0" * 8, "dtype": "<f4", "shape": [2], **fields}
    return msgpack.packb({k.encode(): v for k, v in given_fields.items()})


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        GOLDEN_FLOAT32[:-1],
        GOLDEN_FLOAT32 + b"\x00",
        msgpack.packb({1: 2}),
        frame_of(shape=[3]),
        frame_of(shape=[-2]),
        frame_of(shape=[2.0]),
        frame_of(shape="ab"),
        frame_of(shape=[1 << 62, 1 << 62]),
        frame_of(dtype="|O"),
        frame_of(dtype="f4,f4"),
        frame_of(dtype="nonsense"),
        frame_of(dtype=7),
        frame_of(data="text1234"),
        msgpack.packb({b"__ndarray__": True}),
        msgpack.packb({b"__npgeneric__": True, b"dtype": "|O", b"data": 1}),
    ],
)
def test_frame_that_is_not_valid_raises_wire_error(frame: bytes) -> None:
    with pytest.raises(WireError, match="cannot be read"):
        unpack(frame)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_wire_error(frame: bytes) -> None:
    try:
        unpack(frame)
    except WireError:
        return


def arrays() -> st.SearchStrategy[np.ndarray]:
    return st.sampled_from(PLAIN_DTYPES).flatmap(
        lambda name: stn.arrays(np.dtype(name), stn.array_shapes(min_dims=0, min_side=0))
    )


@given(st.dictionaries(st.text(), arrays() | st.text() | st.integers(-(2**63), 2**64 - 1)))
def test_requests_survive_the_wire(request: dict[str, object]) -> None:
    found = unpack(pack(request))
    assert list(found) == list(request)
    for key, value in request.items():
        if isinstance(value, np.ndarray):
            assert found[key].dtype == value.dtype
            assert np.array_equal(found[key], value, equal_nan=value.dtype.kind == "f")
        else:
            assert found[key] == value


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("<U1", b"\xff" * 4),
        (">U1", b"\x7f\0\0\0"),
        ("<01", bytes(4)),
        ("f4,f4", bytes(8)),
        ("<a1", b"x"),
    ],
    ids=repr,
)
def test_arrays_that_numpy_would_stumble_over_are_refused(dtype: str, data: bytes) -> None:
    array = {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": [1]}
    with pytest.raises(WireError, match="cannot be read"):
        unpack(msgpack.packb({"x": array}))


@pytest.mark.parametrize(("value", "dtype"), [(1e308, "<f4"), (300, "|u1"), ("x", "<f4")])
def test_a_number_that_its_dtype_does_not_hold_is_refused(value: object, dtype: str) -> None:
    number = {b"__npgeneric__": True, b"data": value, b"dtype": dtype}
    with pytest.raises(WireError, match="cannot be read"):
        unpack(msgpack.packb({"x": number}))
