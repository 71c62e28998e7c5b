"""Check, once per model, that stored keys can be rotated to any position, as stitching requires.

`model.layers` tries a few tokens whenever a model is loaded; this covers long texts. Keys
taken before RoPE and rotated by the tables must equal the keys that the model itself wrote to its cache, in every layer
and at every position of a long text.
"""

from __future__ import annotations

import torch

from desk_rag.errors import UnsupportedModel
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.calibration.texts import GROUPS
from desk_rag.kv.prefill import tap_keys
from desk_rag.kv.rope import build_tables, rotate
from desk_rag.model.language_model import LanguageModel

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 4e-3}
"""Relative error explained by rounding, since a model in half precision rotates in half precision. A key at a wrong
position or with wrongly paired dimensions is off by far more."""
_LONGEST = 768


def check_keys(model: LanguageModel) -> float:
    """Relative error of the worst layer's rotated keys; raises UnsupportedModel if it is too large."""
    ids = [*model.prompt.prefix_ids, *model.prompt.chunk_ids("\n\n".join(text for g in GROUPS for text in g.chunks))]
    ids = ids[: min(_LONGEST, model.spec.max_context)]
    cache = SlabCache(model, len(ids))
    with tap_keys(model) as tapped:
        model.forward_step(torch.tensor(ids, device=model.device), cache, 0, logits=False)
    tables = build_tables(model, len(ids))
    worst = 0.0
    for index, layer in enumerate(cache.layers):
        table = tables.table_of_layer[index]
        cos, sin = tables.cos[table], tables.sin[table]
        rotated = rotate(tapped[index][0].float(), cos, sin, interleaved=tables.interleaved)
        worst = max(worst, _relative(rotated, layer.key_slab[0].float()))
    if not worst <= _TOLERANCE[model.spec.dtype]:
        raise UnsupportedModel(
            f"The keys of '{model.spec.name}' do not match its rotary tables (relative error {worst:.1e}), so chunk KV"
            " would be wrong.",
            remedy="Use another model. If this model type is supported, check the installed version of transformers.",
        )
    return worst


def _relative(rotated: torch.Tensor, own: torch.Tensor) -> float:
    """Relative error; NaN counts as infinite."""
    error = float(((rotated - own).norm() / own.norm().clamp_min(1e-6)).item())
    return error if error == error else float("inf")
