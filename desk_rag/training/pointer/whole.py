"""Train every weight of a deeper span scorer, its matrices rounded to the 4 bits in which they are stored.

The table of word pieces stays as it is: words that the questions never use must not be left behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from desk_rag.answering.evidence.span_model import HEAD, STEPS, SpanModel, linear_layers
from desk_rag.errors import ConfigError
from desk_rag.model.checkpoint.int4 import GROUP
from desk_rag.training.pointer.int4 import pack, pack_whole, rounded
from desk_rag.training.pointer.loading import CONFIG, TOKENIZER, WEIGHTS


class _InGroups(nn.Module):
    """Parametrization that rounds a matrix to 4 bits, each GROUP of columns by a step of its own."""

    def forward(self, matrix: Tensor) -> Tensor:
        return rounded(matrix.reshape(-1, GROUP)).view_as(matrix)


def learn_all(net: SpanModel) -> list[nn.Parameter]:
    """Round the matrices and make all but the table of word pieces trainable; returns what is.

    Raises ConfigError for a width that is no multiple of GROUP.
    """
    if net.bert.config.hidden_size % GROUP or net.bert.config.intermediate_size % GROUP:
        raise ConfigError(
            f"The widths of the start are no multiples of {GROUP}.", remedy="Train an adapter: a --rank of 1 or more."
        )
    net.bert.embeddings.word_embeddings.requires_grad_(False)
    for module in (net.bert.embeddings.position_embeddings, *linear_layers(net.bert).values()):
        parametrize.register_parametrization(module, "weight", _InGroups())
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def whole_tensors(net: SpanModel) -> dict[str, Tensor]:
    """Export all weights to the CPU.

    Per matrix NAME its codes, uint8 [rows, columns / 2], and NAME_steps, fp16 [rows, columns / GROUP]; all else fp16,
    the head as head.*.
    """
    words = net.bert.embeddings.word_embeddings.weight
    tensors = {HEAD + name: tensor.half() for name, tensor in net.head.state_dict().items()}
    tensors |= _in_groups("embeddings.word_embeddings.weight", words, pack_whole)
    for name, module in net.bert.named_modules():
        if parametrize.is_parametrized(module, "weight"):
            tensors |= _in_groups(f"{name}.weight", module.parametrizations.weight.original, pack)
    for name, parameter in net.bert.named_parameters():
        if parameter is not words and not name.endswith(".original"):
            tensors[name] = parameter.half()
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def write_whole(out: Path, start: Path, net: SpanModel) -> None:
    """Write the folder of a deeper pointer: its weights, and what `start` has besides."""
    write(out / WEIGHTS, whole_tensors(net))
    for name in (CONFIG, TOKENIZER):
        if out.resolve() != start.resolve():
            shutil.copyfile(start / name, out / name)


def write(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write all or nothing."""
    beside = file.with_name(f"{file.name}.tmp")
    save_file(tensors, beside)
    beside.replace(file)


def _in_groups(name: str, matrix: Tensor, packed: Callable[[Tensor], tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    codes, steps = packed(matrix.detach().reshape(-1, GROUP))
    return {name: codes.view(len(matrix), -1), name + STEPS: steps.view(len(matrix), -1)}
