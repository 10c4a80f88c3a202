"""Inputs written as shapes: parsed, made, described and resized."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ridgeline.cost.study.target import (
    InputSpec,
    base_size,
    describe_input,
    make_inputs,
    parse_input,
    resize_inputs,
)
from ridgeline.errors import UsageError

CPU = torch.device("cpu")
NOTHING = nn.Identity()
DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
    "bool", "complex64",
)  # fmt: skip
shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@given(shape=shapes, dtype=st.sampled_from(DTYPES))
def test_a_described_input_parses_to_the_same_input(shape: tuple[int, ...], dtype: str) -> None:
    text = describe_input(torch.empty(shape, dtype=getattr(torch, dtype), device="meta"))
    assert parse_input(text) == InputSpec(shape, dtype)


@given(shape=shapes, dtype=st.sampled_from(DTYPES))
def test_what_is_parsed_and_made_is_described_the_same(shape: tuple[int, ...], dtype: str) -> None:
    text = f"{'x'.join(map(str, shape)) or 'scalar'}:{dtype}"
    (tensor,), named = make_inputs((parse_input(text),), NOTHING, CPU)
    assert describe_input(tensor) == text
    assert named == {}


@given(st.text(max_size=12))
def test_any_text_parses_or_is_refused_with_a_sentence(text: str) -> None:
    refusal = None
    try:
        sizes = parse_input(text).shape
    except UsageError as error:
        refusal = error
    if refusal is None:
        assert all(size > 0 for size in sizes)
    else:
        assert repr(text) in refusal.message
        assert refusal.hint


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("32x3x224x224", InputSpec((32, 3, 224, 224))),
        ("8x1024:int64", InputSpec((8, 1024), "int64")),
        ("mask=8x1024:bool", InputSpec((8, 1024), "bool", "mask")),
        ("2,3", InputSpec((2, 3))),
        ("2×3:bf16", InputSpec((2, 3), "bf16")),
        (" 7 ", InputSpec((7,))),
        ("scalar", InputSpec(())),
        ("2x3:FLOAT32", InputSpec((2, 3), "float32")),
    ],
)
def test_ways_to_write_an_input(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize("text", ["", "x", "2x", "2x-3", "2 x 3", "1=2x3", "2x3:", "0x3", "2:int3"])
def test_an_invalid_input_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_input(text)


def test_a_name_makes_a_keyword_and_none_a_position() -> None:
    args, kwargs = make_inputs((parse_input("2x3"), parse_input("mask=2:bool")), NOTHING, CPU)
    assert [tuple(a.shape) for a in args] == [(2, 3)]
    assert list(kwargs) == ["mask"]
    assert kwargs["mask"].all()


def test_a_shape_without_dtype_takes_the_models_own() -> None:
    (x,), _ = make_inputs((parse_input("2x3"),), nn.Linear(3, 3).to(torch.bfloat16), CPU)
    assert x.dtype is torch.bfloat16


def test_integers_are_legal_in_the_smallest_table() -> None:
    model = nn.ModuleList([nn.Embedding(1000, 2), nn.Embedding(3, 2)])
    (tokens,), _ = make_inputs((parse_input("500:int64"),), model, CPU)
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) == 2


def test_integers_stay_within_their_own_dtype() -> None:
    (tokens,), _ = make_inputs((parse_input("500:int8"),), nn.Embedding(100_000, 2), CPU)
    assert int(tokens.max()) <= 127


def test_on_meta_inputs_have_no_data() -> None:
    (x,), _ = make_inputs((parse_input("1000000x1000000"),), NOTHING, torch.device("meta"))
    assert x.is_meta


def test_other_values_are_described_by_their_type() -> None:
    assert describe_input([1]) == "list"


def test_base_size_is_that_of_the_first_tensor_with_the_dimension() -> None:
    args = (3, torch.ones(()), torch.ones(4), torch.ones(5, 6))
    assert base_size(args, {}, "batch") == 4
    assert base_size(args, {}, "seq") == 6
    assert base_size((), {"x": torch.ones(2, 9)}, "seq") == 9
    assert base_size((), {}, "batch") == 1


def test_resizing_the_batch_repeats_rows_and_resizes_related_tensors() -> None:
    x, mask, table = torch.arange(6).view(2, 3), torch.ones(2, dtype=torch.bool), torch.ones(7, 3)
    (y, other, flag), kwargs = resize_inputs((x, table, "flag"), {"mask": mask}, "batch", 5)
    assert y.tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert kwargs["mask"].shape == (5,)
    assert other is table
    assert flag == "flag"


def test_resizing_down_keeps_the_first_rows() -> None:
    (y,), _ = resize_inputs((torch.arange(6).view(3, 2),), {}, "batch", 2)
    assert y.tolist() == [[0, 1], [2, 3]]


def test_resizing_the_sequence_changes_the_second_dimension() -> None:
    tokens, embedded = torch.ones(2, 4, dtype=torch.int64), torch.ones(2, 4, 8)
    (a, b), _ = resize_inputs((tokens, embedded), {}, "seq", 6)
    assert (a.shape, b.shape) == ((2, 6), (2, 6, 8))


def test_a_virtual_resize_takes_no_memory() -> None:
    x = torch.ones(2, 3)
    (y,), _ = resize_inputs((x,), {}, "batch", 10**9, virtual=True)
    assert y.shape == (10**9, 3)
    assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize("virtual", [True, False])
def test_a_resized_input_still_wants_its_gradient(virtual: bool) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    (y,), _ = resize_inputs((x,), {}, "batch", 4, virtual=virtual)
    assert y.requires_grad
    assert y.is_leaf


def test_meta_inputs_resize_on_meta() -> None:
    (y,), _ = resize_inputs((torch.empty(2, 3, device="meta"),), {}, "batch", 10**12)
    assert y.is_meta
    assert y.shape == (10**12, 3)
