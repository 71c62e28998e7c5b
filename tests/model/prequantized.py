"""Small checkpoints whose weights really are quantised, in the forms that people download."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GptOssConfig,
    GptOssForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.models import VOCABULARY, byte_tokenizer

FP8_BLOCK = 128


def write_plain(place: Path) -> Path:
    """Write a tiny Qwen2 in fp32 whose matrices have widths that every method can divide."""
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False, pad_token_id=0,
        bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(place)
    byte_tokenizer().save(str(place / "tokenizer.json"))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|im_end|>\n{% endfor %}"
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": template}
    (place / "tokenizer_config.json").write_text(json.dumps(described))
    return place


def by_bitsandbytes(plain: Path, place: Path, kind: str) -> None:
    """Quantise with bitsandbytes on the CPU and save, as publishers do."""
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    chosen = nf4 if kind == "nf4" else BitsAndBytesConfig(load_in_8bit=True)
    module = AutoModelForCausalLM.from_pretrained(plain, quantization_config=chosen, device_map={"": "cpu"})
    module.save_pretrained(place)
    _add_tokenizer(plain, place)


def by_fp8(plain: Path, place: Path) -> None:
    """Write matrices as float8 with one scale per block of 128 x 128, as Qwen3-FP8 and DeepSeek have it."""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            state[name] = tensor
            continue
        rows, columns = (-(-size // FP8_BLOCK) for size in tensor.shape)
        scales = torch.empty(rows, columns)
        coded = torch.empty(tensor.shape, dtype=torch.float8_e4m3fn)
        for row in range(rows):
            for column in range(columns):
                block = (
                    slice(row * FP8_BLOCK, (row + 1) * FP8_BLOCK), slice(column * FP8_BLOCK, (column + 1) * FP8_BLOCK)
                )  # fmt: skip
                scales[row, column] = tensor[block].abs().max() / 448.0
                coded[block] = (tensor[block] / scales[row, column]).to(torch.float8_e4m3fn)
        state[name], state[f"{name}_scale_inv"] = coded, scales
    described = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [FP8_BLOCK, FP8_BLOCK]}
    _write(plain, place, state, described)


def by_compressed_tensors(plain: Path, place: Path) -> None:
    """Write matrices as int8 with one scale per row, four to a word, as llm-compressor does ("pack-quantized")."""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            state[name] = tensor
            continue
        scale = tensor.abs().amax(1, keepdim=True) / 127.0
        codes = (tensor / scale).round().to(torch.int16) + 128
        state[f"{name}_packed"] = codes.to(torch.uint8).view(torch.int32)
        state[f"{name}_shape"] = torch.tensor(tensor.shape)
        state[f"{name}_scale"] = scale
    weights = {
        "num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False, "group_size": None,
    }  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    described = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip
    _write(plain, place, state, described)


def by_gptqmodel(plain: Path, place: Path, method: str) -> None:
    """Quantise with gptqmodel on the CPU, calibrated on a line of text, and save, as publishers do."""
    from gptqmodel import GPTQModel, QuantizeConfig
    from gptqmodel.quantization import FORMAT, METHOD

    form = {"quant_method": METHOD.AWQ, "format": FORMAT.GEMM} if method == "awq" else {}
    model = GPTQModel.load(str(plain), QuantizeConfig(bits=4, group_size=64, **form), device="cpu")
    model.quantize(["The quick brown fox jumps over the lazy dog and runs away. " * 8] * 32, batch_size=1)
    model.save(str(place))
    _add_tokenizer(plain, place)


def by_gptq(plain: Path, place: Path, method: str = "gptq") -> None:
    """Write matrices in GPTQ's or AWQ's layout of int32 words with eight codes each; the codes are arbitrary."""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if not name.endswith("_proj.weight"):
            state[name] = tensor
            continue
        outputs, inputs = tensor.shape
        packed = (inputs // 8, outputs) if method == "gptq" else (inputs, outputs // 8)
        state[f"{stem}.qweight"] = torch.randint(-(2**31), 2**31 - 1, packed, dtype=torch.int32)
        state[f"{stem}.qzeros"] = torch.zeros(inputs // 64, outputs // 8, dtype=torch.int32)
        state[f"{stem}.scales"] = torch.full((inputs // 64, outputs), 0.01, dtype=torch.float16)
    described: dict[str, Any] = {"quant_method": method, "bits": 4, "group_size": 64}
    _write(plain, place, state, described | ({"version": "gemm", "zero_point": True} if method == "awq" else {}))


def write_experts(place: Path) -> Path:
    """Write a tiny gpt-oss in fp32, as wide as blocks of MXFP4 must be."""
    torch.manual_seed(4)
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = GptOssConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=24,
        layer_types=["sliding_attention", "full_attention"], max_position_embeddings=512, rope_parameters=rope,
        tie_word_embeddings=False, pad_token_id=0, bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    module = GptOssForCausalLM(config)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.normal_(std=1.0 if "sinks" in name else 0.1)
    module.save_pretrained(place)
    _add_tokenizer(write_plain(place / "tokenizer"), place)
    return place


def by_mxfp4(plain: Path, place: Path) -> None:
    """Write experts as gpt-oss has them: 32 weights of 4 bits along the inputs share a power of two."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    levels = torch.cat([values, -values])
    state: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            state[name] = tensor
            continue
        blocks = tensor.transpose(1, 2).unflatten(-1, (-1, 32))  # [experts, outputs, groups, 32]
        exponents = (blocks.abs().amax(-1) / 6.0).clamp_min(1e-9).log2().ceil()
        codes = ((blocks / exponents.exp2()[..., None])[..., None] - levels).abs().argmin(-1).to(torch.uint8)
        state[f"{name}_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        state[f"{name}_scales"] = (exponents + 127).to(torch.uint8)
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    _write(plain, place, state, {"quant_method": "mxfp4", "modules_to_not_convert": left})


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "nf4": lambda plain, place: by_bitsandbytes(plain, place, "nf4"),
    "int8": lambda plain, place: by_bitsandbytes(plain, place, "int8"),
    "fp8": by_fp8,
    "compressed-tensors": by_compressed_tensors,
    "mxfp4": by_mxfp4,
    "gptq": by_gptq,
    "awq": lambda plain, place: by_gptq(plain, place, "awq"),
}


def _write(plain: Path, place: Path, state: dict[str, torch.Tensor], described: dict[str, Any]) -> None:
    place.mkdir(parents=True)
    save_file(state, place / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "quantization_config": described}))
    _add_tokenizer(plain, place)


def _add_tokenizer(plain: Path, place: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain / name, place / name)
