"""gpt-oss as GGUF: in MXFP4, as llama.cpp writes it and as Ollama first did, whose layout of layers is another."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from desk_rag.config import ModelSettings
from desk_rag.model.gguf.header import OLLAMA_MXFP4, read_header
from desk_rag.model.loading import load_model
from desk_rag.model.reasoning import Thinking
from tests.model.gguf.families import TINY, gpt_oss_state, module_of, write_tiny
from tests.model.gguf.test_families import IDS
from tests.model.gguf.writing import add_tokenizer, close
from tests.models import byte_tokenizer

GPT_OSS = TINY["gpt-oss"]


def logits(module: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return module(IDS).logits  # type: ignore[no-any-return]


def with_rounded_experts(module: torch.nn.Module) -> torch.nn.Module:
    """The model whose experts' matrices are what MXFP4 leaves of them."""
    for name, parameter in module.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            rows = parameter.detach().transpose(1, 2).contiguous().numpy()
            rounded = gguf.dequantize(gguf.quantize(rows, Kind.MXFP4), Kind.MXFP4).reshape(rows.shape)
            parameter.data = torch.from_numpy(rounded).transpose(1, 2).contiguous()
    return module


def test_experts_in_mxfp4_are_de_quantised(tmp_path: Path) -> None:
    module = module_of(GPT_OSS)
    state = gpt_oss_state({name: tensor.clone() for name, tensor in module.state_dict().items()}, module.config)
    file = tmp_path / "gpt-oss.gguf"
    write_tiny(file, GPT_OSS, Kind.F32, {name: Kind.MXFP4 for name in state if name.endswith("exps.weight")})
    assert sum(tensor.type_id == Kind.MXFP4 for tensor in read_header(file).tensors.values()) == 12
    read = load_model(ModelSettings(device="cpu", name=str(file)), pack=False).module
    assert torch.equal(logits(read), logits(with_rounded_experts(module)))


def test_ollamas_own_layout_computes_the_same(tmp_path: Path) -> None:
    module = with_rounded_experts(module_of(GPT_OSS))
    file = tmp_path / "ollama.gguf"
    write_as_ollama(file, module)
    header = read_header(file)
    assert header.architecture == "gptoss"
    assert sum(tensor.type_id == OLLAMA_MXFP4 for tensor in header.tensors.values()) == 8
    model = load_model(ModelSettings(device="cpu", name=str(file)), pack=False)
    assert torch.equal(logits(model.module), logits(module))
    assert model.prompt.stop_ids == {2, 4}, "all of the tokens that end an answer"


def test_reasoning_is_known_without_a_template(tmp_path: Path) -> None:
    file = tmp_path / "ollama.gguf"
    write_as_ollama(file, module_of(GPT_OSS), ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"])
    prompt = load_model(ModelSettings(device="cpu", name=str(file)), pack=False).prompt
    assert prompt.reasoning.is_harmony and prompt.reasoning.thinking is Thinking.ALWAYS
    assert prompt.parts.tail.endswith("<|end|><|start|>assistant") and prompt.stop_ids == {2, 4}, (
        "<|end|> (3) ends less"
    )


def write_as_ollama(file: Path, module: torch.nn.Module, specials: list[str] | None = None) -> None:
    """Names, joined matrices and pairs of numbers as in Ollama's converter for gpt-oss."""
    config = module.config
    writer = gguf.GGUFWriter(file, "gptoss")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(128)
    writer.add_uint32("gptoss.expert_count", 4)
    writer.add_uint32("gptoss.expert_used_count", 2)
    described = json.loads(byte_tokenizer().to_str())
    for place, token in enumerate(specials or []):
        described["added_tokens"][place]["content"] = token
        described["model"]["vocab"] = {
            token if index == place else old: index for old, index in described["model"]["vocab"].items()
        }
    described["model"]["merges"] = [["t", "h"]]
    described["model"]["vocab"]["th"] = described["model"]["vocab"].pop("\u00ff")
    add_tokenizer(writer, described, eos=2, pre="gpt-4o")
    writer.add_array("tokenizer.ggml.eos_token_ids", [2, 4])
    state = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    writer.add_tensor("output.weight", state["lm_head.weight"])
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])
    names = {
        "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
        "self_attn.o_proj.weight": "attn_out.weight", "self_attn.o_proj.bias": "attn_out.bias",
        "self_attn.sinks": "attn_sinks", "mlp.router.weight": "ffn_gate_inp.weight",
        "mlp.router.bias": "ffn_gate_inp.bias", "mlp.experts.gate_up_proj_bias": "ffn_gate_up_exps.bias",
        "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    }  # fmt: skip
    experts = []
    for layer in range(config.num_hidden_layers):
        own = {name.removeprefix(f"model.layers.{layer}."): tensor for name, tensor in state.items()}
        for kind in ("weight", "bias"):
            joined = np.concatenate([own[f"self_attn.{part}_proj.{kind}"] for part in "qkv"])
            writer.add_tensor(f"blk.{layer}.attn_qkv.{kind}", joined)
        for name, stored in names.items():
            writer.add_tensor(f"blk.{layer}.{stored}", own[name])
        for name in ("gate_up", "down"):
            matrix = np.ascontiguousarray(own[f"mlp.experts.{name}_proj"].swapaxes(1, 2))
            coded = gguf.quantize(matrix, Kind.MXFP4).reshape(-1, 17)
            halves = np.concatenate([coded[:, 1:] & 15, coded[:, 1:] >> 4], axis=-1)  # the numbers in their order
            pairs = halves[:, 0::2] | (halves[:, 1::2] << 4)
            blocks = np.concatenate([coded[:, :1], pairs], axis=-1).reshape(*matrix.shape[:2], -1)
            experts.append(f"blk.{layer}.ffn_{name}_exps.weight")
            writer.add_tensor(experts[-1], blocks, raw_dtype=Kind.MXFP4)
    close(writer)
    data = bytearray(file.read_bytes())
    for name in experts:  # the type has no name in the gguf package
        place = data.index(name.encode()) + len(name) + 4 + 3 * 8
        assert data[place] == Kind.MXFP4
        data[place] = OLLAMA_MXFP4
    file.write_bytes(data)
