"""Build a GGUF file's tokenizer from the vocabulary and merges in its metadata, and what else a prompt needs.

transformers builds it, but for the rule by which text is cut before merging. A GGUF file only names that rule; those
that are known here were compared with llama.cpp's, text by text, and a file with another is refused.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from tokenizers import Tokenizer

from desk_rag.errors import ModelError, UnsupportedModel
from desk_rag.model.gguf.chat_frames import template_for
from desk_rag.model.gguf.config import end_ids, model_config
from desk_rag.model.gguf.header import Header

_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST = r"[^\r\n\p{L}\p{N}]?"
_CASED = f"{_FIRST}{_UPPER}*{_LOWER}+ENDING|{_FIRST}{_UPPER}+{_LOWER}*ENDING"
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (_ENDINGS + _WORDS + r"|\p{N}{1,3}" + _REST,)
_QWEN2 = (_ENDINGS + _WORDS + r"|\p{N}" + _REST,)
_GPT_4O = (_CASED.replace("ENDING", f"{_ENDINGS}?") + r"|\p{N}{1,3}" + _CASED_REST,)
_CUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx",
                     "jina-v5-nano", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT_4O),
    "tekken": (_CASED.replace("ENDING", "") + r"|\p{N}" + _CASED_REST,),
    "qwen35": (
        _ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "hunyuan-dense": (
        r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "seed-coder": (
        _ENDINGS + _WORDS + r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}  # fmt: skip
"""Patterns by which text is cut, one after the other, by the names of llama.cpp's rules."""
_GPT2_RULE = frozenset({"gpt-2", "default", "olmo", "phi-2", "mpt", "exaone4"})
_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r"})
"""Rules that are GPT-2's after every digit was cut off by itself."""
_WHOLE_WORDS = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken",
     "glm4"}
)  # fmt: skip
"""Rules under which a piece that is a token by itself is not built up by merges."""
_COMPOSED = frozenset({"qwen2", "qwen35", "deepseek-r1-qwen", "command-r"})
"""Rules of models whose own tokenizer normalises text to NFC."""
_KNOWN = _GPT2_RULE | _SINGLE_DIGITS | frozenset(_CUTS)
_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens, as GGUF numbers them."""
_KINDS = {"gpt2": "byte-level BPE", "llama": "SentencePiece"}


def read_tokenizer(header: Header) -> Tokenizer:
    """The tokenizer in the file. Raises UnsupportedModel or ModelError."""
    keys = ("model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id")
    parts = {key: header.metadata.get(f"tokenizer.ggml.{key}") for key in keys}
    _check(header, parts)
    described = {
        "tokenizer_type": parts["model"], "tokens": parts["tokens"],
        "scores": parts["scores"], "token_type": parts["token_type"], "merges": parts["merges"],
    }  # fmt: skip
    convert_gguf_tokenizer = _transformers_converter()
    try:
        converted, _ = convert_gguf_tokenizer(
            header.architecture, {name: value for name, value in described.items() if value is not None}
        )
        tokenizer = Tokenizer.from_str(converted.to_str())
    except Exception as error:  # what a vocabulary out of order provokes in the libraries is not for us to foresee
        raise ModelError(
            f"The tokenizer in {header.file} cannot be read: {str(error)[:200]}", remedy="Download the file again."
        ) from error
    _set_rule(tokenizer, str(parts["pre"] or "default"), byte_level=parts["model"] == "gpt2")
    return tokenizer


def _transformers_converter() -> Any:
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer
    except ImportError as error:
        raise UnsupportedModel(
            f"GGUF files need transformers 5.18 or newer, and {version('transformers')} is installed.",
            remedy='pip install "transformers>=5.18,<5.24"',
        ) from error
    return convert_gguf_tokenizer


def prompt_parts(header: Header) -> tuple[Tokenizer, dict[str, Any], dict[str, Any]]:
    """Tokenizer, what config.json would say, and what tokenizer_config.json would say, the chat template included."""
    tokens = header.metadata.get("tokenizer.ggml.tokens") or []
    own = header.metadata.get("tokenizer.chat_template")
    described: dict[str, Any] = {"chat_template": own or template_for(_control_tokens(header, tokens))}
    for name in ("bos", "eos"):
        token_id = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if type(token_id) is int and 0 <= token_id < len(tokens):
            described[f"{name}_token"] = tokens[token_id]
    return read_tokenizer(header), {**model_config(header), "eos_token_id": end_ids(header)}, described


def _control_tokens(header: Header, tokens: list[str]) -> list[str]:
    """The tokens that are no words of the language."""
    types = header.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list):
        return []
    return [token for token, kind in zip(tokens, types, strict=False) if kind in (_CONTROL, _USER_DEFINED)]


def _check(header: Header, parts: dict[str, Any]) -> None:
    kind, pre, tokens = parts["model"], parts["pre"], parts["tokens"]
    if kind not in _KINDS:
        raise UnsupportedModel(
            f"The tokenizer in {header.file} is of the kind '{str(kind)[:40]}', which is not read from GGUF.",
            remedy="Take the publisher's safetensors of the same model.",
        )
    if kind == "gpt2" and (pre or "default") not in _KNOWN:
        raise UnsupportedModel(
            f"The tokenizer in {header.file} cuts text by a rule '{str(pre)[:40]}' that is not known here.",
            remedy="Take the publisher's safetensors of the same model.",
        )
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise ModelError(f"{header.file} holds no vocabulary.", remedy="Download the file again.")
    for name in ("scores", "token_type"):
        if parts[name] is not None and (not isinstance(parts[name], list) or len(parts[name]) != len(tokens)):
            raise ModelError(
                f"{header.file} has {len(tokens):,} tokens and another number of '{name}'.",
                remedy="Download the file again.",
            )
    merges = parts["merges"]
    if kind == "gpt2" and not (isinstance(merges, list) and all(isinstance(merge, str) for merge in merges)):
        raise ModelError(f"{header.file} holds no merges for its vocabulary.", remedy="Download the file again.")


def _set_rule(tokenizer: Tokenizer, rule: str, *, byte_level: bool) -> None:
    """Set how text is cut before merging."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    if not byte_level:
        return
    if rule in _SINGLE_DIGITS:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif rule in _CUTS:
        cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in _CUTS[rule]]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.model.ignore_merges = rule in _WHOLE_WORDS
    if rule in _COMPOSED and tokenizer.normalizer is None:
        tokenizer.normalizer = normalizers.NFC()
