"""Arguments of launches: scalars fit, structs have C's layout, tensor maps obey the driver."""

from __future__ import annotations

import base64
import ctypes
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.plan import Buffer, Pointer, Scalar, ScalarType, Struct, Table, TensorMap, parameter_bytes, struct_layout


def tensor_map(**fields: object) -> TensorMap:
    """C of a 64x32 product as f16 [64, 32], which each test changes."""
    return TensorMap.model_validate({"buffer": "C", "dims": (32, 64), "strides_bytes": (64,), "box": (32, 8), **fields})


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("i32", -(2**31), 2**31 - 1),
        ("u32", 0, 2**32 - 1),
        ("i64", -(2**63), 2**63 - 1),
        ("u64", 0, 2**64 - 1),
        ("f32", -3.4028234663852886e38, 3.4028234663852886e38),
        ("f64", -1.7976931348623157e308, 1.7976931348623157e308),
    ],
)
def test_a_scalar_fits_its_type(dtype: str, low: float, high: float) -> None:
    for value in (low, high, 0):
        assert Scalar.model_validate({"dtype": dtype, "value": value}).value == value
    beyond = (low - 1, high + 1) if isinstance(low, int) else (low * 1.0000001, high * 1.0000001, 10**400)
    for value in (*beyond, math.nan, math.inf, True, "1", *((0.5,) if isinstance(low, int) else ())):
        with pytest.raises(ValidationError):
            Scalar.model_validate({"dtype": dtype, "value": value})


C_TYPES: dict[ScalarType, type[ctypes._SimpleCData]] = {  # type: ignore[type-arg]
    ScalarType.I32: ctypes.c_int32,
    ScalarType.U32: ctypes.c_uint32,
    ScalarType.I64: ctypes.c_int64,
    ScalarType.U64: ctypes.c_uint64,
    ScalarType.F32: ctypes.c_float,
    ScalarType.F64: ctypes.c_double,
}


@given(st.lists(st.sampled_from([*ScalarType, None]), min_size=1, max_size=12))
def test_a_struct_has_the_layout_of_the_c_compiler(fields: list[ScalarType | None]) -> None:
    members = tuple(Pointer(buffer=Buffer.A) if field is None else Scalar(dtype=field, value=0) for field in fields)
    layout = struct_layout(Struct(fields=members))
    types = [(f"f{i}", ctypes.c_void_p if field is None else C_TYPES[field]) for i, field in enumerate(fields)]
    reference = type("Reference", (ctypes.Structure,), {"_fields_": types})
    assert layout.size_bytes == ctypes.sizeof(reference) == parameter_bytes(Struct(fields=members))
    assert layout.offsets_bytes == tuple(getattr(reference, name).offset for name, _ in types)


def test_a_struct_holds_plain_members_only() -> None:
    for fields in ((), (Table(data_base64="AAAA"),), (Struct(fields=(Scalar(dtype="i32", value=1),)),)):
        with pytest.raises(ValidationError):
            Struct.model_validate({"fields": fields})


def test_a_table_is_base64_of_at_most_a_mebibyte() -> None:
    assert Table(data_base64=base64.b64encode(b"abc").decode()).data == b"abc"
    assert len(Table(data_base64=base64.b64encode(bytes(1 << 20)).decode()).data) == 1 << 20
    for text in ("", "abc", "ab c", "äöüß", base64.b64encode(bytes((1 << 20) + 1)).decode()):
        with pytest.raises(ValidationError):
            Table(data_base64=text)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"dims": (32,), "strides_bytes": (), "box": (32,)},
        {"dims": (32, 8, 2, 2, 2), "strides_bytes": (64, 512, 1024, 2048), "box": (8, 1, 1, 1, 1)},
        {"box": (256, 256)},
        {"box": (16, 8), "swizzle": "32B"},
        {"box": (64, 8), "swizzle": "128B"},
        {"dtype": "u8", "box": (16, 1)},
        {"element_strides": (1, 8)},
        {"interleave": "16B", "l2_promotion": "256B", "fill": "nan"},
        {"offset_bytes": 16},
    ],
)
def test_a_tensor_map_that_the_driver_takes(fields: dict[str, object]) -> None:
    assert tensor_map(**fields).type == "tensor_map"


@pytest.mark.parametrize(
    "fields",
    [
        {"dims": (), "strides_bytes": (), "box": ()},
        {"dims": (8,) * 6, "strides_bytes": (16,) * 5, "box": (8,) * 6},
        {"strides_bytes": ()},
        {"strides_bytes": (64, 64)},
        {"strides_bytes": (72,)},
        {"strides_bytes": (0,)},
        {"strides_bytes": (1 << 40,)},
        {"box": (32,)},
        {"box": (32, 0)},
        {"box": (32, 257)},
        {"box": (4, 8)},
        {"box": (32, 8), "swizzle": "32B"},
        {"box": (128, 8), "swizzle": "128B"},
        {"element_strides": (1,)},
        {"element_strides": (1, 9)},
        {"element_strides": (0, 1)},
        {"offset_bytes": 8},
        {"offset_bytes": -16},
        {"dims": (32, 0)},
        {"dims": (32, (1 << 32) + 1)},
        {"dtype": "bf16"},
        {"buffer": "D"},
    ],
)
def test_a_tensor_map_that_the_driver_would_refuse(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        tensor_map(**fields)
