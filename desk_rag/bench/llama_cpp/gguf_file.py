"""Write the embedded reader as a GGUF file without a vocabulary, for comparisons by token ids."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType

from desk_rag.assets import assets_dir
from desk_rag.model.checkpoint import row_int8

FORMS = {"q8_0": GGMLQuantizationType.Q8_0, "f16": GGMLQuantizationType.F16}
"""Quantisations of the matrices by the name of the option; vectors stay fp32."""


def write_reader(file: Path, form: str) -> None:
    """Write the embedded reader to `file` with its matrices in `form`."""
    folder = assets_dir() / "reader"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, tensor in row_int8.read(folder / "model.safetensors").items():
        stem, _, suffix = name.rpartition(".")
        values = tensor.float().numpy().astype(np.float32)
        kind = FORMS[form] if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(f"{names.get_name(stem) or stem}.{suffix}", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
