"""int8 codes are those of a hand-computed round to nearest even; what int8 cannot hold stays raw."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from desk_rag.kv.quant import (
    LayerScheme,
    QuantScheme,
    dequantize,
    dequantize_into,
    dequantize_layer,
    group_span,
    keep_exact,
    quantize,
    quantize_layer,
    spread,
)
from desk_rag.kv.types import ChunkKV, Int8Layer, RawLayer

INT8 = LayerScheme()


def coded(keys: torch.Tensor, values: torch.Tensor | None = None, scheme: LayerScheme = INT8) -> Int8Layer:
    layer = quantize_layer(keys, torch.zeros_like(keys) if values is None else values, scheme)
    assert isinstance(layer, Int8Layer)
    return layer


def column(*numbers: float) -> torch.Tensor:
    """Keys [1, T, 1]: one channel over the tokens."""
    return torch.tensor(numbers)[None, :, None]


def row(*numbers: float) -> torch.Tensor:
    """Values [1, 1, D]: one token."""
    return torch.tensor(numbers)[None, None]


def test_key_codes_are_rounded_to_the_nearest_even() -> None:
    # Range -127..127 gives the scale 1 and the zero point 0, so that the codes can be read off.
    numbers = [-127.0, 127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49, 0.51, -99.7, 126.5]
    layer = coded(column(*numbers))
    assert layer.key_scale.tolist() == [[[1.0]]]
    assert layer.key_zero.tolist() == [[[0.0]]]
    assert layer.keys[0, :, 0].tolist() == [-127, 127, 0, 2, 2, 0, -2, -2, 0, 1, -100, 126]
    assert layer.keys.dtype is torch.int8


def test_value_codes_are_rounded_to_the_nearest_even() -> None:
    layer = coded(torch.zeros(1, 1, 6), row(127.0, -127.0, 0.5, 1.5, -2.5, 63.5))
    assert layer.value_scale.tolist() == [[1.0]]
    assert layer.values[0, 0].tolist() == [127, -127, 0, 2, -2, 64]


def test_truncation_would_be_noticed() -> None:
    """Truncating toward zero passes loose round-trip tests; the raw codes tell the two apart."""
    numbers = torch.linspace(-1, 1, 255)
    layer = coded(column(*numbers.tolist()))
    scale = layer.key_scale.item()
    expected = [round(number / scale) for number in numbers.tolist()]  # Python rounds halves to even as well
    truncated = [int(number / scale) for number in numbers.tolist()]
    assert layer.keys[0, :, 0].tolist() == expected
    assert expected != truncated


def test_the_zero_point_is_the_middle_of_the_range_per_channel() -> None:
    keys = torch.tensor([[[10.0, -3.0], [12.0, 5.0], [11.0, 1.0]]])
    layer = coded(keys)
    assert layer.key_zero[0, 0].tolist() == [11.0, 1.0]
    assert layer.keys[0].tolist() == [[-127, -127], [127, 127], [0, 0]]


@pytest.mark.parametrize("largest", [1.0, 3.3333, 126.99, 0.013, 5000.0, 1e-3])
def test_the_scale_is_rounded_up_and_never_down(largest: float) -> None:
    layer = coded(torch.zeros(1, 1, 2), row(largest, -largest))
    exact = max(largest / 127, 2.0**-14)  # the smallest normal fp16 number is the smallest scale
    got = layer.value_scale.item()
    assert got >= exact * (1 - 1e-7)
    below = torch.nextafter(layer.value_scale, torch.zeros(1).half()).item()
    assert below < exact
    assert layer.values[0, 0].tolist() == [round(largest / got), -round(largest / got)]


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 40),
    offset=st.floats(-500, 500),
    size=st.floats(1e-3, 300),
    group=st.sampled_from([None, 1, 7, 16]),
    seed=st.integers(0, 1000),
)
def test_no_number_comes_back_further_off_than_half_a_step(
    tokens: int, offset: float, size: float, group: int | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(2, tokens, 6, generator=generator) * size + offset
    values = torch.randn(2, tokens, 6, generator=generator) * size
    layer = coded(keys, values, LayerScheme(group=group))
    for codes in (layer.keys, layer.values):
        assert codes.to(torch.int16).abs().max() <= 127
    back_keys, back_values = dequantize_layer(layer)
    key_step = spread(layer.key_scale, tokens)
    # fp32 arithmetic around a large zero point adds a few units in the last place of the number itself.
    slack = 4e-7 * (keys.abs().max() + 1)
    assert ((back_keys - keys).abs() <= key_step / 2 * (1 + 1e-5) + slack).all()
    assert ((back_values - values).abs() <= layer.value_scale.float()[..., None] / 2 * (1 + 1e-5) + 1e-9).all()


def test_zero_and_constant_channels_come_back_exactly() -> None:
    keys = torch.zeros(1, 5, 3)
    keys[..., 1] = 3.25
    keys[..., 2] = torch.arange(5.0)
    layer = coded(keys, torch.zeros(1, 5, 3))
    back, values = dequantize_layer(layer)
    assert back[..., :2].equal(keys[..., :2])
    assert values.equal(torch.zeros(1, 5, 3))
    assert layer.keys[..., :2].count_nonzero() == 0
    assert back.isfinite().all()


def test_a_constant_that_fp16_cannot_hold_is_still_within_half_a_step() -> None:
    """The zero point is rounded to fp16 first; the codes carry what that rounding left over."""
    keys = torch.full((1, 4, 1), 605.37)
    layer = coded(keys)
    assert layer.key_zero.item() != pytest.approx(605.37, abs=1e-3)
    back, _ = dequantize_layer(layer)
    assert (back - keys).abs().max() <= layer.key_scale.item() / 2 + 1e-4


@pytest.mark.parametrize("offset", [60000.0, -60000.0])
def test_huge_offsets_within_fp16_are_coded(offset: float) -> None:
    keys = offset + torch.linspace(-1, 1, 9)[None, :, None]
    back, _ = dequantize_layer(coded(keys))
    assert (back - keys).abs().max() < 0.1


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (column(70000.0, 70001.0), None),
        (column(-3e38, 3e38), None),
        (column(float("inf"), 0.0), None),
        (column(float("nan"), 0.0), None),
        (torch.zeros(1, 1, 2), row(1e7, 0.0)),
        (torch.zeros(1, 1, 2), row(float("nan"), 0.0)),
    ],
    ids=["offset", "range", "infinite key", "nan key", "value", "nan value"],
)
def test_what_does_not_fit_stays_raw_and_untouched(keys: torch.Tensor, values: torch.Tensor | None) -> None:
    values = torch.zeros_like(keys) if values is None else values
    layer = quantize_layer(keys, values, INT8)
    assert isinstance(layer, RawLayer)
    torch.testing.assert_close(layer.keys, keys, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(layer.values, values, rtol=0, atol=0, equal_nan=True)


def test_one_token_alone_is_coded_as_its_own_zero_point() -> None:
    keys, values = torch.randn(2, 1, 8), torch.randn(2, 1, 8)
    layer = coded(keys, values)
    back, _ = dequantize_layer(layer)
    assert layer.key_scale.shape == (2, 1, 8)
    assert (back - keys).abs().max() < 2e-3


@pytest.mark.parametrize(("tokens", "group", "groups"), [(10, 3, 4), (64, 64, 1), (65, 64, 2), (7, 3, 3), (1, 64, 1)])
def test_groups_are_even_and_decoded_with_their_own_scales(tokens: int, group: int, groups: int) -> None:
    keys = torch.randn(2, tokens, 4) * torch.arange(1, tokens + 1)[None, :, None]
    layer = coded(keys, torch.randn(2, tokens, 4), LayerScheme(group=group))
    assert layer.key_scale.shape == layer.key_zero.shape == (2, groups, 4)
    span = group_span(tokens, group)
    assert span <= group
    back, _ = dequantize_layer(layer)
    for index, part in enumerate(keys.split(span, dim=1)):
        middle = (part.amax(1) + part.amin(1)) / 2
        assert layer.key_zero[:, index].equal(middle.half())
        off = (back[:, index * span : (index + 1) * span] - part).abs().amax(1)
        assert (off <= layer.key_scale[:, index].float() * 0.51 + 1e-4).all()


def test_finer_groups_are_closer_where_the_range_grows() -> None:
    keys = torch.randn(1, 128, 16) * torch.linspace(0.1, 5, 128)[None, :, None]
    errors = [
        (dequantize_layer(coded(keys, scheme=LayerScheme(group=group)))[0] - keys).norm() for group in (None, 64, 16)
    ]
    assert errors[0] > errors[1] > errors[2]


def test_given_zero_points_replace_the_middle() -> None:
    chunk = ChunkKV(torch.randn(2, 2, 9, 4) + 100, torch.randn(2, 2, 9, 4))
    zeros = torch.full((2, 2, 4), 100.0)
    kv = quantize(chunk, QuantScheme.uniform(2), zeros)
    for layer in kv.layers:
        assert isinstance(layer, Int8Layer)
        assert (layer.key_zero == 100).all()
    assert (dequantize(kv).keys - chunk.keys).abs().max() < 0.05


def test_a_mixed_scheme_codes_each_layer_as_it_says() -> None:
    chunk = ChunkKV(torch.randn(3, 2, 70, 4).bfloat16(), torch.randn(3, 2, 70, 4).bfloat16())
    scheme = QuantScheme((LayerScheme(raw=True), INT8, LayerScheme(group=64)))
    raw, whole, fine = quantize(chunk, scheme).layers
    assert isinstance(raw, RawLayer)
    assert raw.keys.dtype is torch.bfloat16
    assert raw.keys.equal(chunk.keys[0])
    assert isinstance(whole, Int8Layer)
    assert isinstance(fine, Int8Layer)
    assert (whole.key_scale.shape[1], fine.key_scale.shape[1]) == (1, 2)
    assert scheme.label == "raw*1+int8*1+int8g64*1"


def test_keep_exact_keeps_every_bit_and_nbytes_counts_scales() -> None:
    chunk = ChunkKV(torch.randn(2, 2, 10, 8), torch.randn(2, 2, 10, 8))
    exact = keep_exact(chunk)
    assert dequantize(exact).keys.equal(chunk.keys)
    assert exact.nbytes == 2 * chunk.keys.numel() * 4
    # Per layer: codes of K and V, scale and zero per channel, scale per token and head.
    assert quantize(chunk, QuantScheme.uniform(2)).nbytes == 2 * (2 * 160 + 2 * 2 * 16 + 2 * 20)


def test_codes_do_not_share_memory_with_the_chunk() -> None:
    """A raw layer is written to disk later, when the model's slab may already hold something else."""
    slab = torch.randn(1, 2, 20, 4)
    layer = quantize_layer(slab[0, :, 5:12], slab[0, :, 5:12], LayerScheme(raw=True))
    before = layer.keys.clone()
    slab.zero_()
    assert layer.keys.equal(before)


@pytest.mark.parametrize("group", [None, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("raw", [False, True])
def test_written_in_place_it_is_what_is_returned(group: int | None, dtype: torch.dtype, raw: bool) -> None:
    """Into a slab with room around the chunk, which stays untouched."""
    torch.manual_seed(3)
    layer = quantize_layer(torch.randn(2, 21, 8) * 3 + 5, torch.randn(2, 21, 8), LayerScheme(raw=raw, group=group))
    keys, values = torch.full((2, 30, 8), 99.0), torch.full((2, 30, 8), 99.0, dtype=dtype)
    dequantize_into(layer, keys[:, 4:25], values[:, 4:25])
    expected_keys, expected_values = dequantize_layer(layer)
    torch.testing.assert_close(keys[:, 4:25], expected_keys, rtol=1e-6, atol=1e-6)
    assert torch.equal(values[:, 4:25], expected_values.to(dtype))
    assert (keys[:, :4] == 99).all() and (keys[:, 25:] == 99).all() and (values[:, 25:] == 99).all()
