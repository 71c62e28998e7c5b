"""Find out by trying what each layer of a loaded model does with its keys, or refuse the model.

Whether chunk KV can be moved does not follow from a model's name. What must hold is tried here on the model itself,
with a short text at two places: keys at one place are those at the other, rotated; values, and what the model makes of
the text, are the same at both; and the cache is all that a second piece of the text needs of the first. A layer without
position, an interleaved rotation or a norm after it are then nothing special, and a model with hidden state, absolute
positions or a rotation of another kind is refused with the property.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from desk_rag.errors import UnsupportedModel
from desk_rag.model.layers.rotary import NO_POSITION, TableName, half_tables, rotate, table_names, unrotate

_TOKENS, _FIRST_PIECE, _OFFSET = 23, 9, 37
"""A length that no number of heads has, so that the order of dimensions can be told apart."""
_LARGEST_ERROR = {torch.float32: 1e-2, torch.bfloat16: 0.25, torch.float16: 0.1}
"""Relative error of keys, values and hidden states at another place: rounding grows from layer to layer."""
_LARGEST_TAP_ERROR = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 4e-3}
"""Relative error of a module's rotated output against the key in the cache: one rounding."""
_WRONG = "its chunk KV cannot be moved"


class KeyTap(Enum):
    """Place where the pre-RoPE key is taken: a module's output, or the cache, where it is turned back."""

    K_NORM = "k_norm"
    K_PROJ = "k_proj"
    QKV_PROJ = "qkv_proj"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """Facts about the keys of every layer of a model."""

    key_tap: KeyTap
    heads_first: bool
    """The tapped module runs after the transpose: its output is [1, H, N, D] instead of [1, N, H, D]."""
    interleaved: bool
    """Neighbouring dimensions are turned together, instead of halves."""
    tables: tuple[TableName, ...]
    """Distinct rotary tables."""
    table_of_layer: tuple[int, ...]
    kv_shape: tuple[int, int]
    """KV heads and the size of a head, the same in all layers."""

    @property
    def has_layers_without_position(self) -> bool:
        return NO_POSITION in self.tables


@dataclass(frozen=True, slots=True)
class _Pass:
    """Keys, values and results of one pass."""

    keys: list[torch.Tensor]
    """Per layer fp32 [H, N, D], as they lie in the cache."""
    values: list[torch.Tensor]
    hidden: torch.Tensor
    """fp32 [N, E]."""
    outputs: list[dict[KeyTap, torch.Tensor]]
    """Per layer what the modules before the rotation gave out."""


def find(module: Any) -> AttentionLayout:
    """Try the model on a short text. Raises UnsupportedModel with the property that forbids stored keys."""
    name = str(module.config.model_type)
    check_build(module, name)
    device = next(module.parameters()).device
    ids = (torch.arange(_TOKENS, device=device) * 37 + 11) % int(module.config.vocab_size)
    try:
        near, far = _run(module, ids, 0, [_TOKENS]), _run(module, ids, _OFFSET, [_FIRST_PIECE, _TOKENS])
    except UnsupportedModel:
        raise
    except (AttributeError, TypeError, IndexError, KeyError, ValueError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UnsupportedModel(
            f"'{name}' cannot be run over a cache of keys and values: {type(error).__name__} "
            f"{str(error).partition(chr(10))[0][:160]}"
        ) from error
    kv_shape = _common_shape(near, name)
    limit = _limit(module, _LARGEST_ERROR)
    if any(getattr(part, "multiplies_in", None) is torch.bfloat16 for part in module.modules()):
        limit = _LARGEST_ERROR[torch.bfloat16]
    interleaved, tables, of_layer = _rotation(module, near, far, limit, name)
    _check_relative(near, far, limit, name)
    tap, heads_first = _tap(module, near, tables, of_layer, interleaved=interleaved)
    return AttentionLayout(tap, heads_first, interleaved, tables, of_layer, kv_shape)


def compute_dtype(module: Any) -> torch.dtype:
    """The dtype activations have: that of the embeddings, which no weight quantisation touches."""
    embeddings = module.get_input_embeddings()
    dtype: torch.dtype = getattr(embeddings, "compute_dtype", None) or embeddings.weight.dtype
    return dtype


def _limit(module: Any, limits: dict[torch.dtype, float]) -> float:
    return limits.get(compute_dtype(module), limits[torch.bfloat16])


def check_build(module: Any, name: str) -> None:
    """Raise UnsupportedModel unless each layer of a text model has attention; it may lie on the meta device."""
    layers = getattr(getattr(module, "model", None), "layers", None)
    if layers is None or not all(hasattr(layer, "self_attn") for layer in layers):
        kinds = sorted({kind for layer in layers or () for kind, _ in layer.named_children() if "attn" not in kind})
        shown = f" ({', '.join(kinds[:4])})" if kinds else ""
        raise UnsupportedModel(f"'{name}' is not a stack of layers that all have attention{shown}: {_WRONG}.")


# Running --------------------------------------------------------------------------------------------------------------


def _run(module: Any, ids: torch.Tensor, offset: int, ends: list[int]) -> _Pass:
    """Run ids from position `offset` on, in pieces up to each of `ends`."""
    from transformers import DynamicCache

    cache, hidden, outputs, start = DynamicCache(), [], [], 0
    for end in ends:
        positions = torch.arange(offset + start, offset + end, device=ids.device)[None]
        with _watched(module) as seen, torch.inference_mode():
            output = module.model(ids[None, start:end], past_key_values=cache, position_ids=positions, use_cache=True)
        hidden.append(output.last_hidden_state[0].float())
        outputs, start = seen, end
    layers = cache.layers
    if len(layers) != len(module.model.layers) or any(layer.get_seq_length() != len(ids) for layer in layers):
        raise UnsupportedModel(
            f"'{module.config.model_type}' does not keep the keys and values of every token in every layer: {_WRONG}."
        )
    keys, values = ([getattr(layer, part)[0].float() for layer in layers] for part in ("keys", "values"))
    return _Pass(keys, values, torch.cat(hidden), outputs)


@contextmanager
def _watched(module: Any) -> Iterator[list[dict[KeyTap, torch.Tensor]]]:
    """While open, keep what the modules that may be tapped give out, by layer."""
    seen: list[dict[KeyTap, torch.Tensor]] = [{} for _ in module.model.layers]

    def keep(index: int, tap: KeyTap) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                seen[index][tap] = output.detach()

        return hook

    with ExitStack() as stack:
        for index, layer in enumerate(module.model.layers):
            for tap in (KeyTap.K_NORM, KeyTap.K_PROJ, KeyTap.QKV_PROJ):
                child = getattr(layer.self_attn, tap.value, None)
                if isinstance(child, torch.nn.Module):
                    stack.callback(child.register_forward_hook(keep(index, tap)).remove)
        yield seen


def _common_shape(run: _Pass, name: str) -> tuple[int, int]:
    shapes = {tuple(tensor.shape) for tensor in (*run.keys, *run.values)}
    if len(shapes) != 1:
        raise UnsupportedModel(f"The layers of '{name}' keep keys and values of different sizes, which is not served.")
    heads, _, dim = next(iter(shapes))
    return heads, dim


# Findings ------------------------------------------------------------------------------------------------------------


def _rotation(
    module: Any, here: _Pass, there: _Pass, limit: float, name: str
) -> tuple[bool, tuple[TableName, ...], tuple[int, ...]]:
    """(interleaved, distinct tables, table of each layer) by which the keys of one place become those of the other."""
    decoder = module.model
    device = here.hidden.device
    best: tuple[float, bool, list[TableName]] | None = None
    names = table_names(decoder)
    near, far = (torch.arange(_TOKENS, device=device) + start for start in (0, _OFFSET))
    angles = {name: (half_tables(decoder, name, near), half_tables(decoder, name, far)) for name in names}
    for interleaved in (False, True):
        chosen, errors = [], []
        for before, after in zip(here.keys, there.keys, strict=True):
            tried = {NO_POSITION: relative(before, after)}
            for table, (from_here, to_there) in angles.items():
                if 2 * from_here[0].shape[-1] <= before.shape[-1]:
                    plain = unrotate(before, *from_here, interleaved=interleaved)
                    tried[table] = relative(rotate(plain, *to_there, interleaved=interleaved), after)
            table = min(tried, key=lambda each: tried[each])
            chosen.append(table)
            errors.append(tried[table])
        worst = max(errors)
        if best is None or worst < best[0]:
            best = worst, interleaved, chosen
    assert best is not None
    if not best[0] <= limit:
        raise UnsupportedModel(
            f"The position of a token is not, or not only, a rotation of the keys of '{name}' by its tables "
            f"(relative error {best[0]:.1e}): {_WRONG}.",
            remedy="`desk-rag help models` lists what works. The embedded reader is the default.",
        )
    tables = tuple(sorted(set(best[2]), key=lambda table: (table.module, table.kind)))
    widths = {angles[table][0][0].shape[-1] for table in tables if table != NO_POSITION}
    if len(widths) > 1:
        raise UnsupportedModel(f"The layers of '{name}' turn different numbers of dimensions, which is not served.")
    return best[1], tables, tuple(tables.index(table) for table in best[2])


def _check_relative(here: _Pass, there: _Pass, limit: float, name: str) -> None:
    """Raise unless values and results are the same at both places, in one piece and in two."""
    values = max(relative(one, other) for one, other in zip(here.values, there.values, strict=True))
    # By token and then the median: a mixture of experts may send a token elsewhere for a rounding.
    apart = (here.hidden - there.hidden).norm(dim=-1) / here.hidden.norm(dim=-1).clamp_min(1e-6)
    worst = max(values, float(apart.median()))
    if not worst <= limit:
        raise UnsupportedModel(
            f"'{name}' computes something else of the same text at another place, or behind its own cache "
            f"(relative error {worst:.1e}): it has a state or a position besides its rotated keys, so {_WRONG}."
        )


def _tap(
    module: Any, here: _Pass, tables: tuple[TableName, ...], of_layer: tuple[int, ...], *, interleaved: bool
) -> tuple[KeyTap, bool]:
    """The module whose output is the pre-RoPE key, and whether heads come first in it; else the cache."""
    limit = _limit(module, _LARGEST_TAP_ERROR)
    positions = torch.arange(_TOKENS, device=here.hidden.device)
    angles = [None if name == NO_POSITION else half_tables(module.model, name, positions) for name in tables]
    heads, dim = int(here.keys[0].shape[0]), int(here.keys[0].shape[2])
    for tap in (KeyTap.K_NORM, KeyTap.K_PROJ, KeyTap.QKV_PROJ):
        for heads_first in (False, True):
            fits = True
            for outputs, keys, table in zip(here.outputs, here.keys, of_layer, strict=True):
                start = int(module.config.num_attention_heads) * dim
                taken = (
                    None
                    if tap not in outputs
                    else by_heads(
                        outputs[tap], heads, dim, start=start if tap is KeyTap.QKV_PROJ else 0, heads_first=heads_first
                    )
                )
                if taken is None or taken.shape[0] != 1 or taken.shape[2] != _TOKENS:
                    fits = False
                    break
                turned, angle = taken[0].float(), angles[table]
                if angle is not None:
                    turned = rotate(turned, *angle, interleaved=interleaved)
                if not relative(turned, keys) <= limit:
                    fits = False
                    break
            if fits:
                return tap, heads_first
    return KeyTap.CACHE, True


def by_heads(output: torch.Tensor, heads: int, dim: int, *, start: int, heads_first: bool) -> torch.Tensor | None:
    """A tapped module's output as [B, H, N, D]; None if it has another number of dimensions.

    `start` is where the keys begin in the output of a module that makes queries, keys and values together.
    """
    if heads_first:
        return output.clone() if output.ndim == 4 and output.shape[1] == heads else None
    if output.ndim < 3 or output.shape[-1] not in (dim, heads * dim) and not start:
        return None
    if start:
        output = output[..., start : start + heads * dim]
    rows = output.reshape(*output.shape[:2], -1)
    if rows.shape[-1] != heads * dim:
        return None
    return rows.view(*rows.shape[:2], heads, dim).transpose(1, 2).contiguous()


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    """Norm of the difference over the norm of `other`; NaN counts as infinite."""
    error = float(((one - other).norm() / other.norm().clamp_min(1e-6)).item())
    return error if error == error else float("inf")
