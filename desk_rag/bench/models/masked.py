"""Reference for stitching: one masked forward pass in which each chunk sees its own copy of the prefix.

A chunk was prefilled right behind the prefix, and moving its keys moves the prefix with it as far as that chunk is
concerned. So chunk j gets a private copy of the prefix at positions start_j - P .. start_j - 1, visible to that chunk
alone, while the question sees the real prefix, all chunks and itself. (With one prefix for all, only the first chunk
would agree: values, and keys above layer 0, depend on the distance to the prefix.) Filler passages between the prefix
and a chunk (kv/prefix_variants/variants.py) are part of its private copy.
"""

from __future__ import annotations

import torch

from desk_rag.model.language_model import LanguageModel

_PREFIX, _QUESTION = -1, -2


def masked_forward(
    model: LanguageModel, chunks: list[list[int]], question: list[int], starts: list[int], question_start: int,
    before: list[list[int]] | None = None,
) -> torch.Tensor:  # fmt: skip
    """Logits [len(question), vocab] of one ordinary forward pass without a cache.

    `before` is per chunk what stands in its private copy: the prefix's ids and maybe more; by default the prefix's.
    """
    prefix = list(model.prompt.prefix_ids)
    size = len(prefix)
    ids, positions, owner, copies = list(prefix), list(range(size)), [_PREFIX] * size, [False] * size
    own = before or [prefix] * len(chunks)
    for index, (chunk, start, stood) in enumerate(zip(chunks, starts, own, strict=True)):
        size = len(stood)
        ids += stood + chunk
        positions += list(range(start - size, start + len(chunk)))
        owner += [index] * (size + len(chunk))
        copies += [True] * size + [False] * len(chunk)
    ids += question
    positions += list(range(question_start, question_start + len(question)))
    owner += [_QUESTION] * len(question)
    copies += [False] * len(question)

    who, copy = torch.tensor(owner), torch.tensor(copies)
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    same = who[:, None] == who[None, :]
    from_question = (who[:, None] == _QUESTION) & ~copy[None, :]
    visible = causal & (same | from_question)
    mask: object = _additive(visible, model.spec.dtype)
    layer_types = getattr(model.module.config, "layer_types", None) or []
    window = getattr(model.module.config, "sliding_window", None)
    position_ids = torch.tensor(positions)
    near = visible & ((position_ids[:, None] - position_ids[None, :]) < window) if window else visible
    if "sliding_attention" in layer_types:
        mask = {"full_attention": mask, "sliding_attention": _additive(near, model.spec.dtype)}
    elif window and not layer_types:
        mask = _additive(near, model.spec.dtype)
    with torch.inference_mode():
        output = model.module(
            torch.tensor(ids)[None], attention_mask=mask, position_ids=position_ids[None], use_cache=False
        )
    logits: torch.Tensor = output.logits[0, -len(question) :]
    return logits


def _additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    zero = torch.zeros(visible.shape, dtype=dtype)
    return zero.masked_fill(~visible, torch.finfo(dtype).min)[None, None]
