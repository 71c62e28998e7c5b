"""Write GGUF files as llama.cpp's converter does, from models and tokenizers that are at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType as Kind

from desk_rag.assets import assets_dir
from desk_rag.model.checkpoint import row_int8

READER = assets_dir() / "reader"
Array = npt.NDArray[Any]


def reader_state() -> dict[str, torch.Tensor]:
    """The embedded reader's weights in fp32, by transformers' names."""
    return {name: tensor.float() for name, tensor in row_int8.read(READER / "model.safetensors").items()}


def write_reader(file: Path, kind: Kind, **changes: Any) -> dict[str, torch.Tensor]:
    """The embedded reader as a GGUF file; returns its weights as de-quantising must give them back."""
    fields = json.loads((READER / "config.json").read_text()) | changes
    writer = gguf.GGUFWriter(file, "qwen3")
    add_shape(writer, fields)
    add_tokenizer(writer, json.loads((READER / "tokenizer.json").read_text()), eos=fields["eos_token_id"])
    described = json.loads((READER / "tokenizer_config.json").read_text())
    writer.add_chat_template(described["chat_template"])
    written = add_tensors(writer, reader_state(), gguf.MODEL_ARCH.QWEN3, fields["num_hidden_layers"], kind)
    close(writer)
    return written


def add_shape(writer: gguf.GGUFWriter, fields: Mapping[str, Any]) -> None:
    """Write the sizes in config.json under GGUF's names."""
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_block_count(fields["num_hidden_layers"])
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(fields["num_attention_heads"])
    writer.add_head_count_kv(fields["num_key_value_heads"])
    layer_norm = next((name for name in ("layer_norm_eps", "norm_epsilon", "norm_eps") if name in fields), None)
    if layer_norm:
        writer.add_layer_norm_eps(fields[layer_norm])
    else:
        writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    if fields.get("head_dim"):
        writer.add_key_length(fields["head_dim"])
        writer.add_value_length(fields["head_dim"])
    theta = fields.get("rope_theta") or (fields["rope_parameters"] or {}).get("rope_theta")
    if theta:
        writer.add_rope_freq_base(theta)


def add_tokenizer(writer: gguf.GGUFWriter, described: Mapping[str, Any], *, eos: int, pre: str = "qwen2") -> None:
    """A byte-level tokenizer.json as llama.cpp's converter writes it."""
    ids = {**described["model"]["vocab"], **{token["content"]: token["id"] for token in described["added_tokens"]}}
    tokens = sorted(ids, key=lambda token: ids[token])
    special = {token["content"] for token in described["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([int(gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL) for t in tokens])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in described["model"]["merges"]]
    writer.add_token_merges(merges)
    writer.add_eos_token_id(eos)


def add_tensors(
    writer: gguf.GGUFWriter,
    state: Mapping[str, torch.Tensor],
    arch: gguf.MODEL_ARCH,
    layers: int,
    kind: Kind,
    kinds: Mapping[str, Kind] = MappingProxyType({}),
) -> dict[str, torch.Tensor]:
    """Write `state`, matrices in the form `kind` or that in `kinds`; returns what reading must give back."""
    names = gguf.get_tensor_name_map(arch, layers)
    written = {}
    for name, tensor in state.items():
        stem, _, suffix = name.rpartition(".")
        target = f"{names.get_name(stem) or stem}.{suffix}"
        values = tensor.detach().float().numpy()
        form = form_of(values, kinds.get(name, kind))
        coded = quantized(values, form)
        writer.add_tensor(target, coded, raw_dtype=form)
        written[name] = torch.from_numpy(np.array(read_back(coded, form, values.shape)))
    return written


def form_of(values: Array, kind: Kind) -> Kind:
    """The form a tensor gets: vectors stay fp32, rows that are no whole blocks become Q8_0, as in real files."""
    if values.ndim == 1:
        return Kind.F32
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    return kind if values.shape[-1] % block == 0 else Kind.Q8_0


def quantized(values: Array, form: Kind) -> Array:
    """`values` as the bytes of `form`."""
    if form is Kind.F32:
        return values.astype(np.float32)
    if form is Kind.F16:
        return values.astype(np.float16)
    return _q4_k(values) if form is Kind.Q4_K else gguf.quantize(values.astype(np.float32), form)


def read_back(coded: Array, form: Kind, shape: tuple[int, ...]) -> Array:
    """The numbers that `coded` stands for."""
    if form in (Kind.F32, Kind.F16):
        return coded.astype(np.float32)
    return gguf.dequantize(coded, form).reshape(shape)


def _q4_k(values: Array) -> Array:
    """Blocks of 256 numbers: eight of 32 with 6-bit scales and minima, by the simplest choice of both."""
    blocks = values.reshape(-1, 8, 32).astype(np.float32)
    least = np.minimum(blocks.min(-1), 0.0)
    steps = (blocks.max(-1) - least) / 15
    d, dmin = steps.max(-1) / 63, -least.min(-1) / 63
    d, dmin = (np.where(number > 0, number, 1.0).astype(np.float16) for number in (d, dmin))
    scales = np.clip(np.rint(steps / d.astype(np.float32)[:, None]), 1, 63).astype(np.uint8)
    minima = np.clip(np.rint(-least / dmin.astype(np.float32)[:, None]), 0, 63).astype(np.uint8)
    step = d.astype(np.float32)[:, None, None] * scales[..., None]
    low = dmin.astype(np.float32)[:, None, None] * minima[..., None]
    codes = np.clip(np.rint((blocks + low) / step), 0, 15).astype(np.uint8)
    packed = np.zeros((len(blocks), 12), np.uint8)
    packed[:, 0:4] = (scales[:, :4] & 63) | ((scales[:, 4:] >> 4) << 6)
    packed[:, 4:8] = (minima[:, :4] & 63) | ((minima[:, 4:] >> 4) << 6)
    packed[:, 8:12] = (scales[:, 4:] & 15) | ((minima[:, 4:] & 15) << 4)
    nibbles = (codes[:, 0::2] | (codes[:, 1::2] << 4)).reshape(len(blocks), 128)
    raw = np.concatenate([d[:, None].view(np.uint8), dmin[:, None].view(np.uint8), packed, nibbles], axis=-1)
    return raw.reshape(values.shape[0], -1)


def close(writer: gguf.GGUFWriter) -> None:
    """Write everything to disk."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
