"""List the models that are on this machine, with the numbers that decide whether they suit it; loads no weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from desk_rag.config import ModelSettings
from desk_rag.errors import DeskRagError, ModelError
from desk_rag.model import weights
from desk_rag.model.checkpoint import files as checkpoint_files
from desk_rag.model.checkpoint import quantized
from desk_rag.model.gguf.config import model_config
from desk_rag.model.gguf.header import read_header
from desk_rag.model.library import lm_studio, ollama
from desk_rag.model.memory.plan import ON_CPU, PACKED_BYTES
from desk_rag.model.prompt import check_tokenizer


@dataclass(frozen=True, slots=True)
class Shape:
    """Numbers of a model that decide about memory and disk."""

    model_type: str
    parameters: int
    embedding_parameters: int
    """Those of them that are embeddings, which quantisation leaves at 16 bits."""
    layers: int
    kv_heads: int
    head_dim: int
    window: int
    stored_bytes: int = 0
    """Bytes of weights that came quantised and stay as they are; 0 for others."""
    cpu_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the weights as a CPU holds them, by the form of the matrices; empty if there is only one."""
    dense: bool = True
    """False for a mixture of experts, of which a token reads only some."""
    full_attention: bool = True
    """No layer has a sliding window or capped scores, so that lazy attention can serve it."""
    input_table_parameters: int = 0
    """Those of the embeddings that are read by row only; 0 if the same tensor is the output matrix."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Disk of one token's keys and values in 8 bits."""
        return 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Installed:
    """One model on this machine."""

    name: str
    """Name to give to `--model`."""
    source: str
    """'embedded', 'hub', 'Ollama', 'LM Studio' or 'folder'."""
    path: Path | None
    size: int
    """Bytes of the weights on the disk."""
    form: str
    """'safetensors', or 'GGUF' and its quantisation."""
    shape: Shape | None = None
    license: str = ""
    refusal: str = ""
    """Reason for which it cannot be used; empty if nothing was found that forbids it."""
    remark: str = ""
    """Sentence about what of it is not used; empty if that is nothing."""


def everything(folders: Sequence[Path] = ()) -> list[Installed]:
    """All models that are found, the embedded reader first. `folders` are looked into as well."""
    listed = [describe("embedded", "embedded", weights.resolve("embedded", allow_download=False))]
    listed += [describe(name, "hub", path) for name, path in weights.in_hub()]
    for model in ollama.models():
        if isinstance(model, ollama.Unusable):
            listed.append(Installed(model.name, "Ollama", None, 0, "GGUF", refusal=model.reason))
        else:
            described = describe(model.name, "Ollama", model.file, license=model.license)
            listed.append(replace(described, remark=model.unused))
    listed += [describe(name, "LM Studio", path) for name, path in lm_studio.models()]
    for folder in folders:
        listed += [describe(str(path), "folder", path) for path in _models_in(folder)]
    return listed


def describe(name: str, source: str, path: Path, *, license: str = "") -> Installed:
    """One model by its files' headers."""
    size, form, shape, refusal = 0, "safetensors", None, ""
    try:
        if path.is_dir():
            path = weights.checked(path)
        size = sum(file.stat().st_size for file in weights.weight_files(path))
        if path.is_file():
            form = "GGUF"
            header = read_header(path)
            form = f"GGUF {header.quantization}"
            license = license or str(header.metadata.get("general.license") or "")[:80]
            shape = _shape(model_config(header), {each.name: each.shape for each in header.tensors.values()})
        else:
            refusal = _refusal(name, path)
            fields = json.loads((path / "config.json").read_text(encoding="utf-8"))
            tensors = checkpoint_files.tensors(path)
            shapes = {each: info.shape for each, info in tensors.items() if not each.endswith(".scale")}
            shape = _shape(fields, _unpacked(fields, shapes))
            if len(shapes) < len(tensors):  # int8 rows already
                shape = replace(shape, cpu_bytes={})
            if method := _method(fields):
                form = f"safetensors, {method}"
                shape = shape if method in quantized.WIDENED else replace(shape, stored_bytes=size)
    except DeskRagError as error:
        refusal = refusal or error.message
    except (OSError, ValueError, KeyError, TypeError) as error:
        refusal = refusal or f"its files cannot be read ({type(error).__name__})"
    return Installed(name, source, path, size, form, shape, license, refusal)


def _shape(fields: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> Shape:
    text = fields.get("text_config") if isinstance(fields.get("text_config"), dict) else None
    config = {**fields, **(text or {})}
    heads = int(config["num_attention_heads"])
    embeddings = [shape for name, shape in tensors.items() if "embed_tokens" in name or "token_embd" in name]
    heads_out = [shape for name, shape in tensors.items() if name in ("lm_head.weight", "output.weight")]
    table, parameters = (sum(math.prod(shape) for shape in shapes) for shapes in (embeddings, tensors.values()))
    dense = not any("exps" in name or ".experts." in name for name in tensors)
    head = sum(math.prod(shape) for shape in heads_out) if heads_out else table
    rest = parameters - table - head if heads_out else parameters - table
    coded = {form: int(size * rest + ON_CPU["int8"] * head) + 2 * table for form, size in ON_CPU.items()}
    coded["none"] = PACKED_BYTES * (rest + head + table)
    return Shape(
        model_type=str(config.get("model_type")),
        parameters=parameters,
        embedding_parameters=sum(math.prod(shape) for shape in (*embeddings, *heads_out)),
        layers=int(config["num_hidden_layers"]),
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        window=int(config.get("max_position_embeddings") or 0),
        cpu_bytes=coded if dense else {},
        dense=dense,
        full_attention=not (config.get("attn_logit_softcapping") or _slides(config)),
        input_table_parameters=table if heads_out else 0,
    )


def _slides(config: dict[str, Any]) -> bool:
    return bool(config.get("sliding_window")) and config.get("use_sliding_window") is not False


def _method(fields: dict[str, Any]) -> str:
    """Name of the method that quantised the weights; empty for none."""
    described = fields.get("quantization_config")
    return str(described.get("quant_method") or "bitsandbytes")[:40] if isinstance(described, dict) else ""


def _unpacked(fields: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights behind those that came packed: words of 32 bits, or MXFP4's blocks of two to a byte."""
    groups = (fields.get("quantization_config") or {}).get("config_groups") or {}
    bits = next((int(group["weights"]["num_bits"]) for group in groups.values() if group.get("weights")), 8)
    if _method(fields) == "mxfp4":
        plain = {name: shape for name, shape in shapes.items() if not name.endswith("_scales")}
        return {
            name: (*shape[:-1], 2 * shape[-1]) if name.endswith("_blocks") else shape for name, shape in plain.items()
        }
    return {
        name: (shape[0], shape[1] * 32 // bits) if name.endswith(".weight_packed") else shape
        for name, shape in shapes.items()
    }


def _refusal(name: str, directory: Path) -> str:
    """Reason for which loading would refuse a directory before it reads any weights; empty for none."""
    from desk_rag.model import directory_check

    try:
        if name != "embedded":
            directory_check.check(directory, ModelSettings(name=name))
            check_tokenizer(directory)
    except ModelError as error:
        return error.message
    return ""


def _models_in(folder: Path) -> Iterator[Path]:
    """Model directories and GGUF files in `folder` itself and one level below."""
    for place in (folder, *sorted(folder.glob("*/"))):
        if (place / "config.json").is_file() and any(place.glob("*.safetensors")):
            yield place
        else:
            yield from lm_studio.gguf_files(place)
