"""Weights of the embedder for finding passages: its own, plus what training on questions and passages changed.

The changes lie beside the embedder in 4 bits: for a matrix NAME, NAME.change and NAME.change_steps (`unpack_int4`), for
a vector NAME.change in fp16. The word pieces' own vectors have none. `training/embedder` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from desk_rag.model.checkpoint.int4 import unpack_int4

CHANGE, STEPS = ".change", ".change_steps"


def retrieval_weights(weights: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The embedder's `weights` with the changes of `file`; what has none is the same tensor.

    Raises OSError, RuntimeError or SafetensorError for a file that does not belong to these weights.
    """
    changes = load_file(file)
    changed = dict(weights)
    for name in (key.removesuffix(CHANGE) for key in changes if key.endswith(CHANGE)):
        if name not in changed:
            raise RuntimeError(f"{file.name} changes {name}, which the embedder does not have")
        change = changes[name + CHANGE]
        wide = unpack_int4(change, changes[name + STEPS]) if name + STEPS in changes else change.float()
        if wide.shape != changed[name].shape:
            raise RuntimeError(f"{file.name} changes {name} as {tuple(wide.shape)}, which is another shape")
        changed[name] = wide.to(changed[name].device).add_(changed[name])
    return changed
