"""Fingerprint of an embedder: vectors may be compared only if it is the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from desk_rag.retrieval.windows import WINDOW_RULE

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_CANARY = "Na\u00efve caf\u00e9s: 3.10 \u20ac \u2014 re-sign INV-2024/017 by 5pm, Stra\u00dfe \u6771\u4eac\u2026"
"""Text whose word pieces show how a tokenizer treats case, accents, digits, dashes and other scripts."""


def fingerprint_of(module: SentenceTransformer) -> str:
    """Hash all that determines the vectors.

    Only uses values that do not depend on library versions, so that an update does not cause all documents to be
    embedded again.
    """
    import torch

    tokenizer = module.tokenizer
    parts = [
        WINDOW_RULE,
        module.max_seq_length,
        sorted(module.prompts.items()),
        [type(part).__name__ for part in module],
        [part.get_pooling_mode_str() for part in module if hasattr(part, "get_pooling_mode_str")],
        sorted(tokenizer.get_vocab().items()),
        tokenizer(_CANARY, add_special_tokens=True)["input_ids"],
    ]
    digest = hashlib.sha256(repr(parts).encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()[:32]
