"""Does this very model do what stitching rests on? Asked once per model, before the first of its chunk KV is kept.

Knows the model and its rotary tables; knows no disk. The allow-list of `model.support` speaks of architectures; here
the weights and the installed library are asked: turning the tapped keys by the tables must give the keys that the model
itself put into its cache, in every layer and at every position of a long run. Then a stored key can stand anywhere.
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
"""Relative error that rounding explains: a model in half precision rotates in half precision. A key at the next
position, or with its dimensions paired otherwise, is off by far more."""
_LONGEST = 768


def check_keys(model: LanguageModel) -> float:
    """Worst layer's relative error of rotated tapped keys against the model's own. Raises UnsupportedModel."""
    ids = [*model.prompt.prefix_ids, *model.prompt.chunk_ids("\n\n".join(text for g in GROUPS for text in g.chunks))]
    ids = ids[: min(_LONGEST, model.spec.max_context)]
    cache = SlabCache(model, len(ids))
    with tap_keys(model) as tapped:
        model.forward(torch.tensor(ids, device=model.device), cache, 0, logits=False)
    tables = build_tables(model, len(ids))
    worst = 0.0
    for index, layer in enumerate(cache.layers):
        table = tables.table_of_layer[index]
        turned = rotate(tapped[index][0].float(), tables.cos[table], tables.sin[table])
        worst = max(worst, _relative(turned, layer.key_slab[0].float()))
    if not worst <= _TOLERANCE[model.spec.dtype]:
        raise UnsupportedModel(
            f"The keys of '{model.spec.name}' do not turn as its rotary tables say (off by {worst:.1e}), so chunk KV"
            " would be wrong.",
            remedy="Take another model; for one whose type is supported, also check the version of transformers.",
        )
    return worst


def _relative(turned: torch.Tensor, own: torch.Tensor) -> float:
    """NaN counts as infinite."""
    error = float(((turned - own).norm() / own.norm().clamp_min(1e-6)).item())
    return error if error == error else float("inf")
