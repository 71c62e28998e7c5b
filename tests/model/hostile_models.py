"""Model, embedder and adapter directories that must be refused, each built by its name.

`build(name, place)` writes one of them into `place`: a tiny model with random weights and one thing wrong. Pickles and
Python files among them create the file `executed` beside the directory if anything runs them.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

from desk_rag.config import ModelSettings
from tests.models import VOCABULARY, byte_tokenizer

Kind = Literal["model", "embedder", "adapter"]


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory on disk that must be refused."""

    kind: Kind
    place: Path
    match: str
    """A regular expression that the refusal's message must hold."""
    executed: Path
    """Exists if code of the directory's was run."""

    def settings(self) -> ModelSettings:
        """Settings under which loading the directory must end in a refusal."""
        if self.kind == "embedder":
            return ModelSettings(device="cpu", embedder=str(self.place))
        if self.kind == "adapter":
            return ModelSettings(device="cpu", name=str(plain_model()), adapter=str(self.place))
        return ModelSettings(device="cpu", name=str(self.place))


@dataclass(frozen=True, slots=True)
class _Recipe:
    kind: Kind
    match: str
    change: Callable[[Path, Path], None]


_RECIPES: dict[str, _Recipe] = {}
_Change = Callable[[Path, Path], None]


def names() -> list[str]:
    """The names of all directories, in a fixed order."""
    return list(_RECIPES)


def build(name: str, place: Path) -> Directory:
    """Write directory `name` into the empty or missing `place`."""
    recipe = _RECIPES[name]
    executed = place.parent / f"{place.name}.executed"
    shutil.copytree(_template(recipe.kind), place, dirs_exist_ok=True)
    recipe.change(place, executed)
    return Directory(recipe.kind, place, recipe.match, executed)


def _hostile(name: str, match: str, kind: Kind = "model") -> Callable[[_Change], _Change]:
    def register(change: _Change) -> _Change:
        _RECIPES[name] = _Recipe(kind, match, change)
        return change

    return register


# Sound directories, which the others are made of ----------------------------------------------------------------------


@cache
def _templates() -> Path:
    return Path(tempfile.mkdtemp(prefix="desk-rag-templates-"))


def _template(kind: Kind) -> Path:
    return {"model": plain_model, "embedder": plain_embedder, "adapter": plain_adapter}[kind]()


@cache
def plain_model() -> Path:
    """A sound Qwen2 of two layers, its embeddings not tied, with a chat template."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    place = _templates() / "model"
    torch.manual_seed(11)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=2, pad_token_id=0, bos_token_id=None,
        tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(place)
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|a|>", "<|b|>"]
    byte_tokenizer(specials).save(str(place / "tokenizer.json"))
    template = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": template}
    (place / "tokenizer_config.json").write_text(json.dumps(described))
    return place


@cache
def plain_embedder() -> Path:
    """A sound BERT of two layers with mean pooling and a dense layer, as sentence-transformers writes them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    place = _templates() / "embedder"
    torch.manual_seed(12)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "the", "rent"]
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(place)
    tokenizer = Tokenizer(models.WordPiece(vocab={word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(place / "tokenizer.json"))
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, **special}
    (place / "tokenizer_config.json").write_text(json.dumps(described))
    (place / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (place / "modules.json").write_text(json.dumps(modules))
    for path in list(kinds)[1:]:
        (place / path).mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    (place / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    dense = {"in_features": 16, "out_features": 8, "bias": True}
    activation = {"activation_function": "torch.nn.modules.activation.Tanh"}
    (place / "2_Dense" / "config.json").write_text(json.dumps(dense | activation))
    save_file({"linear.weight": torch.randn(8, 16), "linear.bias": torch.zeros(8)}, place / "2_Dense/model.safetensors")
    return place


@cache
def plain_adapter() -> Path:
    """A sound LoRA adapter of rank 2 for `plain_model`."""
    place = _templates() / "adapter"
    place.mkdir()
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (place / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    for layer in range(2):
        stem = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{stem}.lora_A.weight"] = torch.randn(2, 32)
        tensors[f"{stem}.lora_B.weight"] = torch.randn(32, 2)
    save_file(tensors, place / "adapter_model.safetensors", metadata={"format": "pt"})
    return place


# Tools ----------------------------------------------------------------------------------------------------------------


class _Runs:
    """Unpickled, this creates a file."""

    def __init__(self, executed: Path) -> None:
        self.command = f"touch '{executed}'"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def _pickle(file: Path, executed: Path) -> None:
    file.write_bytes(pickle.dumps({"model.norm.weight": _Runs(executed)}))


def _python(file: Path, executed: Path) -> None:
    """A module that creates a file when it is imported, with classes that a configuration may name."""
    names = ("Model", "Config", "Module", "Tokenizer", "Transformer", "Qwen2ForCausalLM")
    classes = "\n".join(f"class {name}: pass" for name in names)
    file.write_text(f"import pathlib\npathlib.Path({str(executed)!r}).touch()\n{classes}\n")


def _edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))


def _config(**changes: Any) -> _Change:
    return lambda place, _: _edit(place / "config.json", **changes)


def _template_of(text: str) -> _Change:
    return lambda place, _: _edit(place / "tokenizer_config.json", chat_template=text)


def _tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> _Change:
    def apply(place: Path, _: Path) -> None:
        file = place / "model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})

    return apply


def _header(change: Callable[[dict[str, Any]], Any]) -> _Change:
    """Rewrite the JSON header of the weights and leave the data."""

    def apply(place: Path, _: Path) -> None:
        file = place / "model.safetensors"
        raw = file.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        content = json.loads(raw[8 : 8 + length])
        changed = change(content)
        text = changed if isinstance(changed, bytes) else json.dumps(content).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])

    return apply


def _shard(place: Path) -> dict[str, str]:
    """Split the weights in two files with an index; return the index's weight map."""
    tensors = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    placed: dict[str, str] = {}
    ordered = sorted(tensors)
    for number, part in enumerate((ordered[::2], ordered[1::2]), start=1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file({key: tensors[key] for key in part}, place / name, metadata={"format": "pt"})
        placed |= dict.fromkeys(part, name)
    _write_index(place, placed)
    return placed


def _write_index(place: Path, placed: dict[str, str]) -> None:
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))


# Weights that are not safetensors -------------------------------------------------------------------------------------


@_hostile("pickle-beside-decoy", "pytorch_model.bin, a format that can run code")
def _(place: Path, executed: Path) -> None:
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    save_file({"x": torch.zeros(1)}, place / "decoy.safetensors")


@_hostile("pickle-beside-decoy-of-the-right-name", "weights hold only 1 tensor")
def _(place: Path, executed: Path) -> None:
    _pickle(place / "pytorch_model.bin", executed)
    save_file({"model.norm.weight": torch.zeros(32)}, place / "model.safetensors")


for _suffix in ("bin", "pt", "pth", "ckpt", "h5", "msgpack", "pkl"):

    @_hostile(f"pickle-{_suffix}", r"a format that can run code when it is opened")
    def _(place: Path, executed: Path, suffix: str = _suffix) -> None:
        (place / "model.safetensors").unlink()
        stem = {"h5": "tf_model", "msgpack": "flax_model", "bin": "pytorch_model"}.get(suffix, "model")
        _pickle(place / f"{stem}.{suffix}", executed)


@_hostile("pickle-named-by-index", "which is not safetensors")
def _(place: Path, executed: Path) -> None:
    placed = _shard(place)
    _pickle(place / "part.bin", executed)
    _write_index(place, placed | {"model.norm.weight": "part.bin"})


@_hostile("pickle-named-safetensors", "could not be loaded")
def _(place: Path, executed: Path) -> None:
    _pickle(place / "model.safetensors", executed)


@_hostile("pickled-shards", "a format that can run code")
def _(place: Path, executed: Path) -> None:
    (place / "model.safetensors").unlink()
    _pickle(place / "pytorch_model-00001-of-00001.bin", executed)
    index = {"weight_map": {"model.norm.weight": "pytorch_model-00001-of-00001.bin"}}
    (place / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@_hostile("gguf", "it is cut short or no GGUF file")
def _(place: Path, executed: Path) -> None:
    (place / "model.safetensors").unlink()
    (place / "model-q4_k.gguf").write_bytes(b"GGUF\x03\0\0\0")


@_hostile("distributed-checkpoint", "distributed training checkpoint")
def _(place: Path, executed: Path) -> None:
    shutil.copy(place / "model.safetensors", place / "shard-00000-model-00001-of-00001.safetensors")
    _pickle(place / ".metadata", executed)


@_hostile("adapter-in-the-model", "holds an adapter")
def _(place: Path, executed: Path) -> None:
    config = {"peft_type": "LORA", "base_model_name_or_path": "evil/base"}
    (place / "adapter_config.json").write_text(json.dumps(config))
    _pickle(place / "adapter_model.bin", executed)


# Code -----------------------------------------------------------------------------------------------------------------


@_hostile("auto-map", "names code to be run: 'auto_map'")
def _(place: Path, executed: Path) -> None:
    _python(place / "evil.py", executed)
    _edit(place / "config.json", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})


@_hostile("auto-map-of-a-new-type", "names code to be run: 'auto_map'")
def _(place: Path, executed: Path) -> None:
    _python(place / "evil.py", executed)
    _edit(place / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.Config"})


@_hostile("auto-map-of-another-repository", "names code to be run: 'auto_map'")
def _(place: Path, executed: Path) -> None:
    _edit(place / "config.json", auto_map={"AutoModelForCausalLM": "evil/repo--modeling.Qwen2ForCausalLM"})


@_hostile("auto-map-of-the-tokenizer", "names code to be run: 'auto_map'")
def _(place: Path, executed: Path) -> None:
    _python(place / "evil.py", executed)
    _edit(place / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})


@_hostile("custom-generate", "brings code to be run")
def _(place: Path, executed: Path) -> None:
    (place / "custom_generate").mkdir()
    _python(place / "custom_generate" / "generate.py", executed)


_hostile("hub-kernel", "an attention kernel from elsewhere")(_config(attn_implementation="evil/kernel"))
_hostile("hub-kernel-private", "an attention kernel from elsewhere")(_config(_attn_implementation="evil/kernel:f"))
_hostile("hub-kernels-of-layers", "kernels from elsewhere")(_config(kernel_config={"RMSNorm": "evil/kernel"}))
_hostile("weights-elsewhere", "sends the loading elsewhere")(_config(transformers_weights="../x.safetensors"))

# Chat templates -------------------------------------------------------------------------------------------------------

_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
_ENDS = "{% endfor %}{% endfor %}{% endfor %}"
_hostile("template-nested-loops", "takes more than 2 s")(_template_of(_LOOPS + _ENDS))
_hostile("template-huge-range", "OverflowError")(_template_of("{% for a in range(10**9) %}{% endfor %}"))
_hostile("template-huge-string", "MemoryError|512 MiB")(_template_of("{{ 'a' * 10**10 }}"))
_hostile("template-huge-number", "takes more than 2 s")(_template_of("{{ 9 ** (9 ** 9) }}"))
_hostile("template-long-output", "renders more than")(
    _template_of("{% for a in range(9999) %}{{ messages[0]['content'] }}{% endfor %}")
)
_hostile("template-breaks-out", "SecurityError")(_template_of("{{ ''.__class__.__mro__[1].__subclasses__() }}"))
_hostile("template-runs-a-command", "SecurityError")(
    _template_of("{{ raise_exception.__globals__['os'].system('touch executed') }}")
)
_hostile("template-undefined", "UndefinedError")(_template_of("{{ nothing.of.the.sort }}"))
_hostile("template-syntax", "TemplateSyntaxError")(_template_of("{% for m in messages %}"))
_hostile("template-recursion", "Recursion|takes more than 2 s")(
    _template_of("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}")
)
_hostile("template-no-text", "is not text")(_template_of(7))  # type: ignore[arg-type]
_hostile("template-too-long", "longer than 256 KiB")(_template_of("a" * 300_000))
_hostile("template-includes-a-file", "fails: TypeError|no loader")(_template_of("{% include '/etc/passwd' %}"))

# Configurations -------------------------------------------------------------------------------------------------------

_hostile("layers-1e9", "num_hidden_layers is 1000000000")(_config(num_hidden_layers=10**9))
_hostile("layers-1000", "1,000 layers, but the weights hold only")(_config(num_hidden_layers=1000, layer_types=...))
_hostile("layers-negative", "num_hidden_layers is -1")(_config(num_hidden_layers=-1))
_hostile("layers-boolean", "num_hidden_layers is True")(_config(num_hidden_layers=True))
_hostile("layers-null", "num_hidden_layers is None")(_config(num_hidden_layers=None))
_hostile("heads-negative", "num_attention_heads is -4")(_config(num_attention_heads=-4))
_hostile("heads-zero", "num_attention_heads is 0")(_config(num_attention_heads=0))
_hostile("heads-not-shared", "cannot share")(_config(num_key_value_heads=3))
_hostile("heads-text", "num_attention_heads is 'four'")(_config(num_attention_heads="four"))
_hostile("head-dim-huge", "head_dim is 1000000")(_config(head_dim=1_000_000))
_hostile("head-dim-odd", "is odd")(_config(head_dim=7))
_hostile("hidden-huge", "hidden_size is 1000000000")(_config(hidden_size=10**9))
_hostile("hidden-no-multiple", "is no multiple of")(_config(hidden_size=33))
_hostile("hidden-wrong", "do not match its config.json")(_config(hidden_size=64))
_hostile("hidden-large-and-wrong", "do not match its config.json")(
    _config(hidden_size=65_536, intermediate_size=131_072)
)
_hostile("window-zero", "sliding_window is 0")(_config(sliding_window=0, use_sliding_window=True))
_hostile("widths-by-layer", r"intermediate_size is \[48, 0\]")(_config(intermediate_size=[48, 0]))
_hostile("vocabulary-huge", "vocab_size is")(_config(vocab_size=10**12))
_hostile("vocabulary-large-and-wrong", "do not match its config.json")(_config(vocab_size=8_000_000))
_hostile("positions-huge", "max_position_embeddings is")(_config(max_position_embeddings=10**15))
for _name, _theta in (("nan", float("nan")), ("0", 0), ("'x'", "x")):
    _hostile(f"theta-{_name}", f"rope_theta is {_name}")(
        _config(rope_parameters={"rope_type": "default", "rope_theta": _theta})
    )
_hostile("rope-no-object", "rope_parameters is 'yarn'")(_config(rope_parameters="yarn"))
_hostile("epsilon-infinite", "rms_norm_eps is inf")(_config(rms_norm_eps=float("inf")))
_hostile("tied-is-text", "tie_word_embeddings is 'no'")(_config(tie_word_embeddings="no"))
_hostile("layer-types-too-many", "layers and 3 layer_types")(_config(layer_types=["full_attention"] * 3))
_hostile("layer-types-no-names", "must be a list of names")(_config(layer_types=[1, 2]))
_hostile("architectures-text", "must be a list of names")(_config(architectures={"a": 1}))
_hostile("activation-unknown", "could not be loaded|cannot be used")(_config(hidden_act="evil"))
_hostile("type-unknown", "config.json cannot be used")(_config(model_type="no-such-thing"))
_hostile("type-list", "config.json cannot be used")(_config(model_type=["qwen2"]))
_hostile("awq", "needs the package gptqmodel")(_config(quantization_config={"quant_method": "awq", "bits": 4}))
_hostile("gptq", "needs the package optimum and gptqmodel")(
    _config(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128})
)
_hostile("compressed-tensors", "needs the package compressed-tensors|cannot be used here")(
    _config(quantization_config={"quant_method": "compressed-tensors"})
)
_hostile("quantised-some-way", "which desk-rag does not load")(_config(quantization_config={"quant_method": "eetq"}))
_hostile("quantised-no-method", "names no quant_method")(_config(quantization_config={"bits": 4}))
_hostile("mlx", "MLX's form")(_config(quantization={"group_size": 64, "bits": 4}))


@_hostile("form-of-its-own", "not built as a stack of layers")
def _(place: Path, executed: Path) -> None:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    (place / "model.safetensors").unlink()
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    GPTNeoXForCausalLM(config).save_pretrained(place)


@_hostile("config-nested", "nested more than")
def _(place: Path, executed: Path) -> None:
    text = (place / "config.json").read_text().strip()
    (place / "config.json").write_text(f'{text[:-1]}, "x": {"[" * 5000}{"]" * 5000}}}')


@_hostile("config-nested-a-little", "nested more than")
def _(place: Path, executed: Path) -> None:
    nested: dict[str, Any] = {}
    for _ in range(100):
        nested = {"x": nested}
    _edit(place / "config.json", text_config=nested)


@_hostile("config-huge", "longer than 64 MiB")
def _(place: Path, executed: Path) -> None:
    with (place / "config.json").open("r+b") as file:
        file.truncate(100 << 20)


@_hostile("config-a-pipe", "not a regular file")
def _(place: Path, executed: Path) -> None:
    (place / "config.json").unlink()
    os.mkfifo(place / "config.json")


@_hostile("config-not-utf8", "config.json cannot be read")
def _(place: Path, executed: Path) -> None:
    (place / "config.json").write_bytes(b'{"model_type": "\xff"}')


@_hostile("generation-config-nested", "nested more than")
def _(place: Path, executed: Path) -> None:
    (place / "generation_config.json").write_text('{"x": ' + "[" * 3000 + "]" * 3000 + "}")


@_hostile("tokenizer-of-a-larger-model", "the model knows only")
def _(place: Path, executed: Path) -> None:
    content = json.loads((place / "tokenizer.json").read_text())
    content["model"]["vocab"]["far"] = 5000
    (place / "tokenizer.json").write_text(json.dumps(content))


@_hostile("tokenizer-a-pipe", "not a regular file")
def _(place: Path, executed: Path) -> None:
    (place / "tokenizer.json").unlink()
    os.mkfifo(place / "tokenizer.json")


# Weights that are wrong -----------------------------------------------------------------------------------------------

_Q = "model.layers.1.self_attn.q_proj.weight"


def _without(prefix: str) -> _Change:
    return _tensors(lambda tensors: {name: value for name, value in tensors.items() if not name.startswith(prefix)})


_hostile("wrong-missing-tensor", f"they lack the tensor {_Q}")(_without(_Q))
_hostile("wrong-missing-layer", r"they lack the tensors model.layers.1.*and \d+ more")(_without("model.layers.1."))
_hostile("wrong-missing-head", "they lack the tensor lm_head.weight")(_without("lm_head."))
_hostile("wrong-missing-norm", "they lack the tensor model.norm.weight")(_without("model.norm."))
_hostile("wrong-no-tensor", "holds no tensor")(_without(""))
_hostile("wrong-prefixed", "they lack the tensors")(
    _tensors(lambda tensors: {f"wrapped.{name}": value for name, value in tensors.items()})
)
_hostile("wrong-extra-layer", "they hold the tensors model.layers.2.*no place for")(
    _tensors(
        lambda tensors: (
            tensors
            | {name.replace(".1.", ".2."): value.clone() for name, value in tensors.items() if ".layers.1." in name}
        )
    )
)
_hostile("wrong-extra-tensor", "they hold the tensor model.surprise")(
    _tensors(lambda tensors: tensors | {"model.surprise": torch.zeros(2)})
)
_hostile("wrong-shape", rf"{_Q} is \[16, 32\] and should be \[32, 32\]")(
    _tensors(lambda tensors: tensors | {_Q: tensors[_Q][:16].clone()})
)
_hostile("wrong-transposed", r"is \[32, 48\] and should be \[48, 32\]")(
    _tensors(
        lambda tensors: {name: value.T.contiguous() if "up_proj" in name else value for name, value in tensors.items()}
    )
)
_hostile("wrong-gptq-without-a-word", "they lack the tensors")(
    _tensors(
        lambda tensors: {
            (name.replace(".weight", ".qweight") if "_proj.weight" in name else name): value
            for name, value in tensors.items()
        }
    )
)
_hostile("wrong-int8-without-scales", "whole numbers without scales")(
    _tensors(lambda tensors: tensors | {_Q: tensors[_Q].to(torch.int8)})
)
_hostile("wrong-scale-without-matrix", "fits no int8 matrix")(
    _tensors(lambda tensors: tensors | {f"{_Q}.scale": torch.ones(32, 1)})
)
_hostile("wrong-scale-of-another-shape", "fits no int8 matrix")(
    _tensors(lambda tensors: tensors | {_Q: tensors[_Q].to(torch.int8), f"{_Q}.scale": torch.ones(31, 1)})
)


def _place_first(header: dict[str, Any], begin: int, end: int) -> None:
    header[_Q]["data_offsets"] = [begin, end]


_hostile("wrong-header-overlap", "overlaps|gap")(_header(lambda header: _place_first(header, 0, 4096)))
_hostile("wrong-header-offset-negative", "impossible shape or place")(_header(lambda h: _place_first(h, -4096, 0)))
_hostile("wrong-header-offset-huge", "gap|cut short|impossible")(
    _header(lambda header: _place_first(header, 1 << 40, (1 << 40) + 4096))
)
_hostile("wrong-header-shape-huge", "impossible shape")(
    _header(lambda header: header[_Q].update(shape=[1 << 60, 1 << 60]))
)
_hostile("wrong-header-shape-text", "impossible shape")(_header(lambda header: header[_Q].update(shape="all")))
_hostile("wrong-header-dtype", "does not describe")(_header(lambda header: header[_Q].update(dtype="EVIL")))
_hostile("wrong-header-entry", "does not describe")(_header(lambda header: header.update({_Q: 7})))
_hostile("wrong-header-no-json", "could not be loaded")(_header(lambda header: b"{" * 100))
_hostile("wrong-header-nested", "header is nested")(_header(lambda header: b"[" * 200_000))
_hostile("wrong-header-list", "no object of tensors")(_header(lambda header: b"[]"))
_hostile("wrong-header-twice", "twice")(
    _header(lambda header: json.dumps(header).encode()[:-1] + b', "' + _Q.encode() + b'": 1}')
)
_hostile("wrong-header-of-mlx", "written for 'mlx'")(_header(lambda h: h.update(__metadata__={"format": "mlx"})))


@_hostile("wrong-header-length", "cut short or no safetensors|bytes long")
def _(place: Path, executed: Path) -> None:
    file = place / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 1 << 62) + file.read_bytes()[8:])


@_hostile("wrong-header-length-in-a-sparse-file", "its header would be")
def _(place: Path, executed: Path) -> None:
    with (place / "model.safetensors").open("r+b") as file:
        file.write(struct.pack("<Q", 1 << 33))
        file.truncate(1 << 34)


@_hostile("wrong-truncated", "cut short")
def _(place: Path, executed: Path) -> None:
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


@_hostile("wrong-trailing", "follow its last tensor")
def _(place: Path, executed: Path) -> None:
    with (place / "model.safetensors").open("ab") as file:
        file.write(b"\0" * 100)


@_hostile("wrong-empty", "cut short or no safetensors")
def _(place: Path, executed: Path) -> None:
    (place / "model.safetensors").write_bytes(b"")


@_hostile("wrong-lfs-pointer", "git lfs pull")
def _(place: Path, executed: Path) -> None:
    (place / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


@_hostile("wrong-error-page", "could not be loaded")
def _(place: Path, executed: Path) -> None:
    (place / "model.safetensors").write_text("<!doctype html><title>404</title>")


@_hostile("wrong-a-directory", "not a regular file")
def _(place: Path, executed: Path) -> None:
    (place / "model.safetensors").unlink()
    (place / "model.safetensors").mkdir()


@_hostile("wrong-link-outside", "outside of the model's directory")
def _(place: Path, executed: Path) -> None:
    elsewhere = place.parent / f"{place.name}.elsewhere"
    (place / "model.safetensors").rename(elsewhere)
    (place / "model.safetensors").symlink_to(elsewhere)


@_hostile("wrong-link-to-itself", "cannot be read|not there")
def _(place: Path, executed: Path) -> None:
    (place / "model.safetensors").unlink()
    (place / "model.safetensors").symlink_to("model.safetensors")


@_hostile("wrong-link-to-a-device", "not a regular file")
def _(place: Path, executed: Path) -> None:
    (place / "model.safetensors").unlink()
    (place / "model.safetensors").symlink_to("/dev/zero")


@_hostile("shards-one-missing", "is missing; model.safetensors.index.json names it")
def _(place: Path, executed: Path) -> None:
    _shard(place)
    (place / "model-00002-of-00002.safetensors").unlink()


@_hostile("shards-one-truncated", "cut short")
def _(place: Path, executed: Path) -> None:
    _shard(place)
    file = place / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


@_hostile("shards-outside", "names a file outside of its directory")
def _(place: Path, executed: Path) -> None:
    placed = _shard(place)
    (place / "model-00002-of-00002.safetensors").rename(place.parent / f"{place.name}.safetensors")
    outside = f"../{place.name}"
    _write_index(place, {name: file.replace("model-00002-of-00002", outside) for name, file in placed.items()})


@_hostile("shards-absolute", "names a file outside of its directory")
def _(place: Path, executed: Path) -> None:
    placed = _shard(place)
    _write_index(place, {name: str(place / file) for name, file in placed.items()})


@_hostile("shards-link-outside", "outside of the model's directory")
def _(place: Path, executed: Path) -> None:
    _shard(place)
    file, elsewhere = place / "model-00002-of-00002.safetensors", place.parent / f"{place.name}.safetensors"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


@_hostile("shards-with-a-tensor-twice", "both hold the tensor")
def _(place: Path, executed: Path) -> None:
    placed = _shard(place)
    first, second = sorted(set(placed.values()))
    tensors = load_file(place / first)
    name = next(iter(tensors))
    save_file(load_file(place / second) | {name: tensors[name]}, place / second, metadata={"format": "pt"})


@_hostile("shards-with-a-tensor-too-many", "does not name")
def _(place: Path, executed: Path) -> None:
    file = sorted(set(_shard(place).values()))[0]
    save_file(load_file(place / file) | {"more": torch.zeros(1)}, place / file, metadata={"format": "pt"})


@_hostile("shards-with-a-tensor-too-few", "lacks the tensor")
def _(place: Path, executed: Path) -> None:
    file = sorted(set(_shard(place).values()))[0]
    tensors = load_file(place / file)
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, place / file, metadata={"format": "pt"})


@_hostile("shards-index-empty", "places no tensors")
def _(place: Path, executed: Path) -> None:
    _shard(place)
    (place / "model.safetensors.index.json").write_text("{}")


@_hostile("shards-index-of-numbers", "names a file outside of its directory")
def _(place: Path, executed: Path) -> None:
    _write_index(place, dict.fromkeys(_shard(place), 7))  # type: ignore[arg-type]


@_hostile("shards-without-index", "is not loaded on a guess")
def _(place: Path, executed: Path) -> None:
    _shard(place)
    (place / "model.safetensors.index.json").unlink()


# Embedders ------------------------------------------------------------------------------------------------------------


@_hostile("embedder-pickle", "a format that can run code", "embedder")
def _(place: Path, executed: Path) -> None:
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()


@_hostile("embedder-pickle-that-runs", "a format that can run code", "embedder")
def _(place: Path, executed: Path) -> None:
    _pickle(place / "pytorch_model.bin", executed)
    (place / "model.safetensors").unlink()


@_hostile("embedder-dense-pickle", "2_Dense are pytorch_model.bin, a format", "embedder")
def _(place: Path, executed: Path) -> None:
    _pickle(place / "2_Dense" / "pytorch_model.bin", executed)
    (place / "2_Dense" / "model.safetensors").unlink()


@_hostile("embedder-dense-shape", "2_Dense do not match", "embedder")
def _(place: Path, executed: Path) -> None:
    _edit(place / "2_Dense" / "config.json", out_features=9)


@_hostile("embedder-dense-activation", "is none of PyTorch's", "embedder")
def _(place: Path, executed: Path) -> None:
    _edit(place / "2_Dense" / "config.json", activation_function="torch.hub.load")


def _module(place: Path, index: int, **changes: str) -> None:
    modules = json.loads((place / "modules.json").read_text())
    modules[index] |= changes
    (place / "modules.json").write_text(json.dumps(modules))


@_hostile("embedder-local-module", "names the module type 'evil.Transformer'", "embedder")
def _(place: Path, executed: Path) -> None:
    _python(place / "evil.py", executed)
    _module(place, 0, type="evil.Transformer")


@_hostile("embedder-module-of-the-library", "names the module type", "embedder")
def _(place: Path, executed: Path) -> None:
    _module(place, 1, type="sentence_transformers.no_such.Module")


@_hostile("embedder-module-of-another-use", "names the module type", "embedder")
def _(place: Path, executed: Path) -> None:
    _module(place, 1, type="sentence_transformers.util.import_from_string")


@_hostile("embedder-path-outside", "names a path outside", "embedder")
def _(place: Path, executed: Path) -> None:
    _module(place, 2, path="../2_Dense")


@_hostile("embedder-link-outside", "leads out of the embedder's directory", "embedder")
def _(place: Path, executed: Path) -> None:
    elsewhere = place.parent / f"{place.name}.dense"
    (place / "2_Dense").rename(elsewhere)
    (place / "2_Dense").symlink_to(elsewhere)


@_hostile("embedder-modules-no-list", "holds no JSON list", "embedder")
def _(place: Path, executed: Path) -> None:
    (place / "modules.json").write_text("{}")


@_hostile("embedder-modules-of-numbers", "does not describe a module", "embedder")
def _(place: Path, executed: Path) -> None:
    (place / "modules.json").write_text("[1, 2]")


@_hostile("embedder-auto-map", "names code to be run", "embedder")
def _(place: Path, executed: Path) -> None:
    _python(place / "evil.py", executed)
    _edit(place / "config.json", auto_map={"AutoModel": "evil.Model"})


@_hostile("embedder-tokenizer-auto-map", "names code to be run", "embedder")
def _(place: Path, executed: Path) -> None:
    _python(place / "evil.py", executed)
    _edit(place / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})


@_hostile("embedder-trusts-code", "which is not allowed", "embedder")
def _(place: Path, executed: Path) -> None:
    _edit(place / "sentence_bert_config.json", model_args={"trust_remote_code": True})


@_hostile("embedder-calls-a-method", "not plain text", "embedder")
def _(place: Path, executed: Path) -> None:
    _edit(place / "sentence_bert_config.json", modality_config={"text": {"method": "push_to_hub"}})


@_hostile("embedder-adapter", "holds an adapter", "embedder")
def _(place: Path, executed: Path) -> None:
    config = {"peft_type": "LORA", "base_model_name_or_path": "evil/base"}
    (place / "adapter_config.json").write_text(json.dumps(config))


_hostile("embedder-layers", "num_hidden_layers is", "embedder")(_config(num_hidden_layers=10**9))
_hostile("embedder-too-few-layers", "they hold the tensors encoder.layer.1", "embedder")(_config(num_hidden_layers=1))
_hostile("embedder-too-many-layers", "they lack the tensors encoder.layer.2", "embedder")(_config(num_hidden_layers=3))
_hostile("embedder-vocabulary", "do not match", "embedder")(_config(vocab_size=4_000_000))
_hostile("embedder-missing-tensor", "they lack the tensors encoder.layer.1", "embedder")(_without("encoder.layer.1."))
_hostile("embedder-without-weights", "no safetensors weights", "embedder")(
    lambda place, _: (place / "model.safetensors").unlink()
)

# Adapters -------------------------------------------------------------------------------------------------------------


@_hostile("adapter-pickle", "adapter_model.bin is a format that can run code", "adapter")
def _(place: Path, executed: Path) -> None:
    _pickle(place / "adapter_model.bin", executed)
    (place / "adapter_model.safetensors").unlink()


def _adapter(**changes: Any) -> _Change:
    return lambda place, _: _edit(place / "adapter_config.json", **changes)


_hostile("adapter-imports", "sets 'megatron_config'", "adapter")(
    _adapter(megatron_config={"a": 1}, megatron_core="evil")
)
_hostile("adapter-of-a-library", "names code to be run", "adapter")(_adapter(auto_mapping={"parent_library": "evil"}))
_hostile("adapter-replicates-layers", "sets 'layer_replication'", "adapter")(_adapter(layer_replication=[[0, 10**9]]))
_hostile("adapter-changes-the-base", "changes the base model", "adapter")(_adapter(init_lora_weights="pissa"))
_hostile("adapter-rank-huge", "r cannot be", "adapter")(_adapter(r=10**12))
_hostile("adapter-rank-wrong", "does not match its adapter_config.json", "adapter")(_adapter(r=64))
_hostile("adapter-pattern-without-end", "target_modules cannot be", "adapter")(_adapter(target_modules="(a+)+$"))
_hostile("adapter-of-other-modules", "lacks the tensors|holds the tensors", "adapter")(
    _adapter(target_modules=["k_proj"])
)
_hostile("adapter-other-kind", "only LoRA", "adapter")(_adapter(peft_type="IA3"))


def _adapter_tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> _Change:
    def apply(place: Path, _: Path) -> None:
        file = place / "adapter_model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})

    return apply


_hostile("adapter-half", "lacks the tensor", "adapter")(
    _adapter_tensors(lambda tensors: {name: value for name, value in tensors.items() if ".1." not in name})
)
_hostile("adapter-one-of-a-pair", "lacks the tensor", "adapter")(
    _adapter_tensors(lambda tensors: {name: value for name, value in tensors.items() if "lora_B" not in name})
)
_hostile("adapter-truncated", "cut short", "adapter")(
    lambda place, _: os.truncate(place / "adapter_model.safetensors", 900)
)
