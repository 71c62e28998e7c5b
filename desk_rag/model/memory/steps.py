"""Run a long prompt in steps, each of as many tokens as memory allows, over the cache that the earlier ones filled.

Hidden states and gates take memory for every token of a pass: 1.5 GB for 8,192 tokens of a model of 7 billion
parameters. A token attends to earlier ones only, so passes over some tokens after the other leave the same keys and
values, and the same logits of the last token (chunked prefill; SARATHI, arXiv 2308.16369).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import psutil
import torch

from desk_rag.errors import OutOfMemory
from desk_rag.model.memory.device import free_gpu_bytes, is_out_of_memory, release_unused
from desk_rag.model.memory.plan import PassShape, prefill_step

T = TypeVar("T")
SMALLEST = 128
"""Tokens of the smallest step. So many rows are multiplied by 4-bit weights without writing these out in 16 bits."""
_UNPLANNED = 512
"""Tokens up to which nothing is planned: they take little, and asking for free memory takes time."""
_log = logging.getLogger(__name__)


def in_steps(run: Callable[[int, int], T], count: int, most: int, device: torch.device) -> T:
    """Call `run(begin, end)` for one step of `count` tokens after the other; returns the last one's result.

    A step has at most `most` tokens. One that runs out of memory is repeated with half of its tokens, and so are those
    after it, so a failed `run` must leave nothing that a repetition does not overwrite. Raises OutOfMemory if SMALLEST
    tokens are too many, and torch's own error if there were no more.
    """
    begin, size = 0, max(1, most)
    while True:
        end = min(count, begin + size)
        try:
            result = run(begin, end)
        except Exception as error:
            if not is_out_of_memory(error) or count <= SMALLEST:
                raise
            if end - begin <= SMALLEST:
                raise _too_little(end - begin, count, device) from error
        else:
            if end == count:
                return result
            begin = end
            continue
        # Outside of the handler, because the error holds the tensors of the failed step.
        release_unused(device)
        size = max(SMALLEST, (end - begin + 1) // 2)
        _log.info("Out of memory with %d tokens at once; going on with %d", end - begin, size)


def tokens_at_once(model: Any, cached: int, count: int) -> int:
    """Tokens that one pass over a loaded model may take, of `count` behind `cached` others, by the memory now free."""
    if count <= _UNPLANNED:
        return count
    return prefill_step(free_bytes(model.device), shape_of(model), cached + count, count)


def shape_of(model: Any) -> PassShape:
    """Numbers of a LanguageModel that decide how much memory a pass takes, from its configuration."""
    spec, config = model.spec, model.module.config
    return PassShape(
        hidden=int(config.hidden_size),
        gates=_widest_gates(config),
        heads=spec.num_heads,
        head_dim=spec.head_dim,
        bytes_per_number=spec.dtype.itemsize,
        keeps_scores=spec.support.needs_eager,
        writes_weights=spec.weight_quantization != "none",
    )


def _widest_gates(config: Any) -> int:
    """Gates of one token: those of the widest MLP, or of all experts that a token goes to."""
    dense = [getattr(config, name, None) for name in ("intermediate_size", "intermediate_size_mlp")]
    sizes = [size for each in dense for size in (each if isinstance(each, list | tuple) else [each])]
    experts = int(getattr(config, "num_experts_per_tok", None) or 0)
    expert = getattr(config, "moe_intermediate_size", None) or getattr(config, "intermediate_size", None)
    sizes += [experts * max(expert) if isinstance(expert, list | tuple) else experts * int(expert or 0)]
    return max(int(size or 0) for size in sizes)


def free_bytes(device: torch.device) -> int:
    """Free memory, with what torch's allocator holds of a GPU's without using it."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    return free_gpu_bytes(device) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _too_little(tokens: int, count: int, device: torch.device) -> OutOfMemory:
    place = "GPU memory" if device.type == "cuda" else "memory"
    return OutOfMemory(
        f"There is not enough {place} to read a text of {count:,} tokens, even {tokens:,} at a time.",
        remedy="Close other programs that use it, lower `top_k` or `context_tokens` under [answer], or take a smaller "
        "model or --quantization nf4 on a GPU (`desk-rag models fit` compares).",
    )
