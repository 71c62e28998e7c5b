"""Check all of a model's files before its weights are loaded.

`load_model` and `desk-rag doctor` both come through here, so that both say the same: the numbers of the configuration,
the family, the tensors in the headers, the package that unpacks quantised weights, what the layers do with their keys,
and the prompt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from desk_rag.config import ModelSettings
from desk_rag.errors import DeskRagError, ModelError, ModelNotFound, OutOfMemory
from desk_rag.model import support as model_support
from desk_rag.model.checkpoint import config as checkpoint_config
from desk_rag.model.checkpoint import files, quantized
from desk_rag.model.checkpoint import tensors as checkpoint_tensors
from desk_rag.model.gguf import config as gguf_config
from desk_rag.model.gguf import weights as gguf_weights
from desk_rag.model.gguf.header import Header, read_header
from desk_rag.model.layers import attention_layout, text_part, trial
from desk_rag.model.library import ollama
from desk_rag.model.on_cpu import placing
from desk_rag.model.prompt import PromptFormat, load_prompt


def check(directory: Path, settings: ModelSettings) -> tuple[Any, model_support.Support]:
    """The configuration in `directory` and how to serve it, after all checks that need no weights to be loaded.

    `directory` may be a GGUF file.
    Raises ModelNotFound, UnsupportedModel or ModelError.
    """
    if settings.name == "embedded":  # part of the program: its files are as trustworthy as this one
        config = _read_config(directory)
        return config, model_support.check(config)
    if directory.is_file():
        return check_gguf(read_header(directory), settings)
    file = directory / checkpoint_config.CONFIG
    fields = checkpoint_config.read_json(directory, checkpoint_config.CONFIG)
    built_in = checkpoint_tensors.built_in_name(fields.get("model_type"))
    checkpoint_config.check_config(file, fields, built_in=built_in)
    config = _read_config(directory)
    support = model_support.check(config)
    # Again, with the defaults that transformers filled in.
    checkpoint_config.check_config(file, {**config.to_dict(), "auto_map": None})
    tensors = files.tensors(directory)
    checkpoint_tensors.check_layer_count(directory, model_support.text_config(config).num_hidden_layers, tensors)
    own = getattr(config, "quantization_config", None)
    if own:
        quantized.check(directory, own)
    with model_errors(directory, settings):
        module = _without_weights(config)
        if not own:
            checkpoint_tensors.compare(directory, module, tensors)
            _check_form(module, settings)
        _try_layers(module, config)
    return config, support


def check_gguf(header: Header, settings: ModelSettings) -> tuple[Any, model_support.Support]:
    """As `check`, for a GGUF file whose header has been read."""
    from transformers import AutoConfig

    ollama.check_digest(header.file.resolve())
    fields = gguf_config.model_config(header)
    checkpoint_config.check_config(header.file, fields)
    checkpoint_tensors.check_layer_count(header.file, fields["num_hidden_layers"], header.tensors)
    try:
        config = AutoConfig.for_model(**fields)
    except Exception as error:  # what a number out of order provokes in transformers is not for us to foresee
        raise ModelError(f"{header.file} cannot be used: {_first_line(error)}", remedy="Download it again.") from error
    support = model_support.check(config)
    with model_errors(header.file, settings):
        module = _without_weights(config)
        gguf_weights.check_tensors(header, module)
        _check_form(module, settings)
        _try_layers(module, config)
    return config, support


def _try_layers(module: Any, config: Any) -> None:
    """Raise UnsupportedModel for what trying the model after its weights are loaded would refuse."""
    text = text_part.text_part(module)
    attention_layout.check_build(text, str(config.model_type))
    trial.try_layers(text)


def _check_form(module: Any, settings: ModelSettings) -> None:
    """Raise UnsupportedModel if few bits on a CPU are wanted, and the model has no such form."""
    on_cpu = settings.device == "cpu" or not torch.cuda.is_available()
    if on_cpu and settings.quantization != "none":
        placing.check_matrices(module, settings.quantization)


def check_prompt(directory: Path, settings: ModelSettings, config: Any, *, quotes: bool = False) -> PromptFormat:
    """Load the prompt format and check that the model has all of the tokenizer's tokens. Raises ModelError.

    `quotes` is as in `load_prompt`; a model with an adapter was taught to quote.
    """
    prompt = load_prompt(directory, quotes=quotes or bool(settings.adapter))
    if settings.name != "embedded" and prompt.largest_id >= (known := model_support.text_config(config).vocab_size):
        raise ModelError(
            f"The tokenizer in {directory} makes token {prompt.largest_id:,}, and the model knows only {known:,}.",
            remedy="The tokenizer.json is that of another model: fetch the model's files again.",
        )
    return prompt


def _read_config(directory: Path) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # what a field of the wrong kind provokes in transformers is not for us to foresee
        raise ModelNotFound(
            f"{directory / 'config.json'} cannot be used: {_first_line(error)}",
            remedy="Check that the directory holds a transformers model of a type this version knows.",
        ) from error
    return config


def _without_weights(config: Any) -> Any:
    """The model of a configuration on the meta device."""
    with no_init(), torch.device("meta"):
        return model_support.model_class(config)._from_config(config)


@contextlib.contextmanager
def model_errors(directory: Path, settings: ModelSettings) -> Iterator[None]:
    """Turn whatever a library raises over a model's files into a ModelError."""
    try:
        yield
    except DeskRagError:
        raise
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"'{settings.name}' does not fit into this GPU's memory.",
            remedy="Try --quantization nf4, a smaller model, or --device cpu.",
        ) from error
    except MemoryError as error:
        raise OutOfMemory(
            f"'{settings.name}' does not fit into this machine's memory.", remedy="Take a smaller model."
        ) from error
    except Exception as error:
        raise ModelError(
            f"'{settings.name}' could not be loaded: {_first_line(error)}", remedy=f"Check the files in {directory}."
        ) from error


def _first_line(error: Exception) -> str:
    """Message of a library, cut to a line: a mismatch of weights and config.json lists every tensor."""
    lines = str(error).strip().splitlines()
    text = lines[0][:300] if lines else ""
    return text if isinstance(error, OSError | ValueError | RuntimeError) and text else f"{type(error).__name__} {text}"


@contextlib.contextmanager
def no_init() -> Iterator[None]:
    """Skip the random initialisation of weights that are about to be overwritten."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        yield
