"""Load the language model: weights, tokenizer, prompt format, and the facts that decide its identity and cost.

Every model that is loaded here has passed `model.support.check`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from desk_rag import __version__
from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError
from desk_rag.model import adapters, directory_check, packed_linear, requantize, weights
from desk_rag.model import support as model_support
from desk_rag.model.checkpoint import quantized as quantized_form
from desk_rag.model.checkpoint import row_int8, tensors
from desk_rag.model.embedded import threads
from desk_rag.model.gguf import weights as gguf_weights
from desk_rag.model.gguf.header import read_header
from desk_rag.model.language_model import LanguageModel, ModelSpec
from desk_rag.model.layers import attention_layout, text_part
from desk_rag.model.memory.page_locked import keep_embeddings_in_ram
from desk_rag.model.memory.plan import SMALL_MODEL, cpu_has_bf16
from desk_rag.model.on_cpu import placing
from desk_rag.model.prompt import PromptFormat, load_prompt

_IRRELEVANT_FIELDS = frozenset(
    [
        "transformers_version",
        "_name_or_path",
        "name_or_path",
        "dtype",
        "torch_dtype",
        "use_cache",
        "architectures",
        "quantization_config",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "chunk_size_feed_forward",
        "problem_type",
        "id2label",
        "label2id",
    ]
)
"""Fields of a configuration that do not change results; the rest is part of a chunk KV's identity."""


def load_model(settings: ModelSettings, *, pack: bool = True) -> LanguageModel:
    """Load the model that `settings` names, with the adapter if one is named there.

    Without `pack` its matrices stay as torch has them, to be trained; a chat model is then asked for quotes.

    Raises ModelNotFound, ModelError (an adapter that was not made for it), UnsupportedModel, ConfigError (quantisation
    without a GPU, an adapter without peft) or OutOfMemory.
    """
    directory = weights.resolve(settings.name, allow_download=settings.allow_download)
    _stay_offline()
    device = pick_device(settings)
    if device.type == "cpu":
        set_threads(settings)
    if settings.name == "embedded" and pack and device.type == "cpu" and not settings.adapter:
        return _load_embedded(directory, settings)
    quiet_libraries()
    config, support = directory_check.check(directory, settings)
    prompt = directory_check.check_prompt(directory, settings, config, quotes=not pack)
    own = prequantized_by(config)
    if own and settings.quantization != "none":
        raise ConfigError(
            f"The weights of '{settings.name}' are quantised already, by {own}.", remedy="Leave --quantization out."
        )
    form = _form_on_cpu(directory, config, settings, device, pack=pack)
    module = _load_module(directory, config, support, settings, device, form)
    quantization = own or settings.quantization
    model = wrap(module, prompt, name=settings.name, directory=directory, quantization=quantization, support=support)
    if settings.adapter:
        model = adapters.attach(model, Path(settings.adapter))
    # Last: the spec counts plain parameters, and an adapter that is merged needs them too.
    if pack:
        packed_linear.pack_linears(model.module)
        keep_embeddings_in_ram(model.module)
    return model


def _load_embedded(directory: Path, settings: ModelSettings) -> LanguageModel:
    """Load the embedded reader without transformers; its files are part of the program and not checked."""
    from desk_rag.model.embedded.reader import load_reader

    with directory_check.model_errors(directory, settings):
        module = load_reader(directory, *weights.weight_files(directory))
    config, prompt = module.config, load_prompt(directory)
    model = _bundle(
        module, prompt, settings.name, directory, config.support, config.layout, config.identity(), quantization="none",
        num_parameters=config.num_parameters,
    )  # fmt: skip
    packed_linear.pack_linears(model.module)
    return model


def prequantized_by(config: Any) -> str:
    """Name of the method by which a checkpoint's weights are quantised; empty for none."""
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        return ""
    method = quantization.get("quant_method", "bitsandbytes") if isinstance(quantization, dict) else "?"
    return str(getattr(method, "value", method))


def wrap(
    module: Any,
    prompt: PromptFormat,
    *,
    name: str,
    directory: Path | None,
    quantization: str = "none",
    support: model_support.Support | None = None,
) -> LanguageModel:
    """Wrap a loaded transformers module; `directory` is None for weights that exist in memory only.

    `support` is that of the whole configuration, which a module that is a text part already no longer has.
    """
    from desk_rag.model import sdpa as attention

    support = support or model_support.check(module.config)
    module = text_part.text_part(module)
    config = module.config
    if not support.needs_eager:
        attention.register()
        module.set_attn_implementation(attention.NAME)
    layout, identity = attention_layout.find(module.eval()), _canonical_config(config)
    size = sum(parameter.numel() for parameter in module.parameters()) + placing.coded_weights(module)
    return _bundle(
        module, prompt, name, directory, support, layout, identity, quantization=quantization, num_parameters=size
    )


def _bundle(
    module: Any,
    prompt: PromptFormat,
    name: str,
    directory: Path | None,
    support: model_support.Support,
    layout: attention_layout.AttentionLayout,
    config_json: str,
    *,
    quantization: str,
    num_parameters: int,
) -> LanguageModel:
    """The model made of a module and what is known about it."""
    module.eval()
    module.requires_grad_(False)
    config, device = module.config, next(module.parameters()).device
    spec = ModelSpec(
        name=name,
        support=support,
        layout=layout,
        num_layers=int(config.num_hidden_layers),
        num_heads=int(config.num_attention_heads),
        num_kv_heads=layout.kv_shape[0],
        head_dim=layout.kv_shape[1],
        num_parameters=num_parameters,
        weights_fingerprint=weights.fingerprint(weights.weight_files(directory))
        if directory
        else f"memory-{id(module)}",
        tokenizer_fingerprint=_tokenizer_fingerprint(directory, prompt) if directory else "memory",
        weight_quantization=quantization,
        dtype=attention_layout.compute_dtype(module),
        config_json=config_json,
    )
    return LanguageModel(spec=spec, module=module, prompt=prompt, device=device)


def _tokenizer_fingerprint(directory: Path, prompt: PromptFormat) -> str:
    if directory.is_file():  # GGUF: the tokenizer is made from the file's vocabulary, and the making may change
        return hashlib.blake2b(prompt.tokenizer_json.encode(), digest_size=16).hexdigest()
    return weights.fingerprint([directory / "tokenizer.json"])


def pick_device(settings: ModelSettings) -> torch.device:
    """The device named in the settings; 'auto' is the GPU if torch sees one. Raises ConfigError."""
    available = torch.cuda.is_available()
    if settings.device == "cuda" and not available:
        raise ConfigError(
            "device 'cuda' was asked for, but torch sees no NVIDIA GPU.",
            remedy="Use --device cpu, or install the CUDA build of torch (desk-rag help install).",
        )
    device = torch.device("cuda" if available and settings.device != "cpu" else "cpu")
    _check_quantization(settings, device)
    return device


def _check_quantization(settings: ModelSettings, device: torch.device) -> None:
    """Raise ConfigError for a form of weights that the device does not have."""
    kind = settings.quantization
    if kind == "nf4" and device.type == "cpu":
        raise ConfigError(
            "quantization 'nf4' needs an NVIDIA GPU.",
            remedy="Take --quantization int8 or int4, which a CPU can do, or leave it out.",
        )
    if kind == "int4" and device.type != "cpu":
        raise ConfigError("quantization 'int4' is for CPUs.", remedy="Take --quantization nf4 on a GPU.")
    if kind != "none" and device.type == "cpu":
        placing.check_cpu(kind)
        if settings.adapter:
            raise ConfigError(
                f"On a CPU, {kind} weights cannot carry an adapter.", remedy="Leave --quantization or --adapter out."
            )


def _form_on_cpu(directory: Path, config: Any, settings: ModelSettings, device: torch.device, *, pack: bool) -> str:
    """The form in which a CPU's matrices are placed while they are read; empty if they are loaded as they are.

    What would be held in fp32 is packed in fp16 afterwards anyway, and memory would hold both.
    """
    if device.type != "cpu" or prequantized_by(config):
        return ""
    if settings.quantization != "none":
        return settings.quantization
    packs = pack and packed_linear.available() and not settings.adapter
    parameters = read_header(directory).num_parameters if directory.is_file() else _parameters(directory)
    return placing.PACKED if packs and _dtype(parameters, device) is torch.float32 else ""


def _load_module(
    directory: Path,
    config: Any,
    support: model_support.Support,
    settings: ModelSettings,
    device: torch.device,
    form: str,
) -> Any:
    attention = "eager" if support.needs_eager else "sdpa"
    with directory_check.model_errors(directory, settings):
        if directory.is_file():
            return _load_gguf(directory, config, attention, settings, device, form)
        if row_int8.has_scales(weights.weight_files(directory)[0]):
            return _load_row_int8(directory, config, attention, device)
        model_class = model_support.model_class(config)
        if form:
            from desk_rag.model.on_cpu import while_loading

            files = weights.weight_files(directory)
            module, info = while_loading.load(model_class, config, files, attention, form)
            tensors.check_loaded(directory, info)
            return module
        options: dict[str, Any] = {
            "attn_implementation": attention,
            "config": config,
            "local_files_only": True,
            "use_safetensors": True,
            "trust_remote_code": False,
            "output_loading_info": True,
        }
        quantized = prequantized_by(config) or settings.quantization != "none"
        if settings.quantization != "none":
            options |= {"quantization_config": _bitsandbytes(settings.quantization), "dtype": torch.bfloat16}
        else:
            options["dtype"] = _load_dtype(directory, device)
        if quantized:
            options["device_map"] = {"": 0 if device.type == "cuda" else "cpu"}
        if prequantized_by(config) in quantized_form.WIDENED:
            config.quantization_config["dequantize"] = True
        with quantized_form.quiet_packages() if prequantized_by(config) else contextlib.nullcontext():
            module, info = model_class.from_pretrained(str(directory), **options)
        tensors.check_loaded(directory, info)
        module = text_part.text_part(module)
        return module if quantized else module.to(device)


def _load_gguf(
    file: Path, config: Any, attention: str, settings: ModelSettings, device: torch.device, form: str
) -> Any:
    """A GGUF file's weights, de-quantised; quantised again, or packed in fp16, matrix by matrix."""
    from transformers import AutoModelForCausalLM

    header = read_header(file)
    kind = settings.quantization
    dtype = torch.bfloat16 if kind != "none" else _dtype(header.num_parameters, device)
    gguf_weights.check_room(header, dtype, form or "none")
    with directory_check.no_init():
        module = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    placer = None
    if form:
        placing.check_matrices(module, form)
        placer = placing.MatrixPlacer(module, module, form)
    gguf_weights.load(header, module, placer)
    if form:
        return placing.finish(module)
    return module.to(device) if kind == "none" else requantize.quantize_linears(module, kind, device)


def _load_row_int8(directory: Path, config: Any, attention: str, device: torch.device) -> Any:
    """The embedded reader's form: matrices as int8 with one fp16 scale per output row, vectors as fp32."""
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    state = {
        name: tensor.to(dtype)
        for file in weights.weight_files(directory)
        for name, tensor in row_int8.read(file).items()
    }
    with directory_check.no_init():
        module = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    missing, unexpected = module.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    tensors.check_loaded(directory, {"missing_keys": set(missing) - tied, "unexpected_keys": set(unexpected)})
    module.tie_weights()
    return module.to(device)


def _load_dtype(directory: Path, device: torch.device) -> torch.dtype:
    return _dtype(_parameters(directory), device)


def _parameters(directory: Path) -> int:
    """Weights in 16 bits that files of this size hold."""
    return sum(file.stat().st_size for file in weights.weight_files(directory)) // 2


def _dtype(parameters: int, device: torch.device) -> torch.dtype:
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if parameters > SMALL_MODEL and cpu_has_bf16() else torch.float32


def _canonical_config(config: Any) -> str:
    """Everything in the configuration that may change what a layer computes: RoPE, windows, norms, scaling."""
    fields = {name: value for name, value in config.to_dict().items() if name not in _IRRELEVANT_FIELDS}
    return json.dumps(fields, sort_keys=True, default=str)


def _bitsandbytes(kind: str) -> Any:
    from transformers import BitsAndBytesConfig

    requantize.bitsandbytes()
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )


def set_threads(settings: ModelSettings) -> None:
    """Leave a core to other programs, unless the settings or OMP_NUM_THREADS say how many threads to use."""
    import psutil

    if settings.threads:
        threads.settle(settings.threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        threads.settle(max(1, (psutil.cpu_count(logical=False) or 2) - 1))
    else:
        threads.settle(None)


def _stay_offline() -> None:
    """Turn off the libraries' network, telemetry and advice, before any of them is imported."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("USE_HUB_KERNELS", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def quiet_libraries() -> None:
    """Turn off the libraries' progress bars, advice on stderr, network and telemetry: a UI owns the terminal."""
    _stay_offline()
    import logging

    from transformers.utils import logging as hf_logging

    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)


PRODUCER = f"desk-rag {__version__}, torch {torch.__version__}"
