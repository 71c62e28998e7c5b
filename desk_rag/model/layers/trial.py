"""Try a model's layers before its weights are loaded, with random numbers in their place.

What `attention_layout.find` asks of a loaded model follows from its configuration: which way keys are turned, of what
size keys and values are, whether the layers run over a cache at all. So one layer of each kind is run here. All their
matrices are the same numbers in memory, and the largest of them is all that is held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from desk_rag.model.layers import attention_layout

_SCALE = 0.02
"""Standard deviation of the numbers, as most models are initialised."""
_PERIOD = 1_000_003
"""Count of different numbers; a prime, so that the rows of a matrix differ."""
_PLACE = frozenset({"layer_idx", "layer_id", "layer_index"})
"""Attributes that number a layer and make it no other kind."""


def try_layers(module: Any) -> None:
    """Raise UnsupportedModel if `find` would refuse the loaded model.

    `module` reads and writes text and lies on the meta device; afterwards it is of no more use.
    """
    layers = module.model.layers
    del layers[_first_of_each_kind(module) :]
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            part.register_buffer(name, torch.empty_like(buffer, device="cpu"), persistent=False)
    pretrained = module if hasattr(module, "initialize_weights") else module.model
    pretrained.initialize_weights()  # computes the rotary tables; parameters are still on the meta device
    matrices = (math.prod(parameter.shape[-2:]) for parameter in layers.parameters())
    numbers = _random_numbers(max(*matrices, *(sum(parameter.shape[-2:]) for parameter in module.parameters())))
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            part.register_parameter(name, torch.nn.Parameter(_filled(parameter.shape, numbers), requires_grad=False))
    attention_layout.find(module.eval())


def _first_of_each_kind(module: Any) -> int:
    """The smallest number of first layers that has one of each kind."""
    kinds = [_kind(module.config, index, layer) for index, layer in enumerate(module.model.layers)]
    return max(kinds.index(kind) for kind in set(kinds)) + 1


def _kind(config: Any, index: int, layer: Any) -> tuple[Any, ...]:
    """Type of a layer, its parameters, and the plain values that its parts hold."""
    types = getattr(config, "layer_types", None) or ()
    return (
        types[index] if index < len(types) else "",
        *((name, tuple(parameter.shape)) for name, parameter in layer.named_parameters()),
        *_plain_values(layer),
    )


def _plain_values(layer: Any) -> Iterator[tuple[str, str, Any]]:
    for path, part in layer.named_modules():
        for name, value in sorted(vars(part).items()):
            if isinstance(value, str | bool | int | float) and name not in _PLACE:
                yield path, name, value


def _random_numbers(length: int) -> torch.Tensor:
    """At least `length` numbers, fp32."""
    numbers = torch.randn(_PERIOD, generator=torch.Generator().manual_seed(0)) * _SCALE
    return numbers.repeat(-(-length // _PERIOD))


def _filled(shape: torch.Size, numbers: torch.Tensor) -> torch.Tensor:
    """Ones for a vector, the first of the numbers for a matrix and for every expert of a stack.

    The rows of a matrix with more numbers than there are, that of the word pieces, begin one number after another.
    """
    if len(shape) < 2:
        return torch.ones(shape)
    height, width = shape[-2:]
    step = width if height * width <= len(numbers) else 1
    return numbers.as_strided((height, width), (step, 1)).expand(shape)
