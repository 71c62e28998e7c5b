"""Keep only the lowest layers of a model, so that it becomes a smaller auxiliary model."""

from __future__ import annotations

from typing import Any

import torch

from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import wrap

_COUNT = "num_hidden_layers"


def keep_lowest(model: LanguageModel, count: int) -> LanguageModel:
    """Return the model with its lowest `count` layers and its last norm; it takes the module over.

    Raises ConfigError for a count that it does not have, UnsupportedModel for a configuration of another form.
    """
    module, layers = model.module, model.spec.num_layers
    if not 1 <= count <= layers:
        raise ConfigError(f"--layers {count}: the auxiliary model has {layers} layers.")
    if count == layers:
        return model
    if not isinstance(getattr(module.model, "layers", None), torch.nn.ModuleList):
        raise UnsupportedModel("The layers of this model cannot be taken apart.", remedy="Leave --layers out.")
    module.model.layers = torch.nn.ModuleList(list(module.model.layers)[:count])
    for name, value in shortened(module.config.to_dict(), count).items():
        setattr(module.config, name, value)
    return wrap(module, model.prompt, name=model.spec.name, directory=None, support=model.spec.support)


def shortened(config: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the entries of a configuration that change: the number of layers, and lists with one entry per layer."""
    layers = config[_COUNT]
    per_layer = {
        name: value[:count] for name, value in config.items() if isinstance(value, list) and len(value) == layers > 1
    }
    return {**per_layer, _COUNT: count}
