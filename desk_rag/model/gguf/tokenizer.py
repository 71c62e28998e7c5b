"""Build a GGUF file's tokenizer from the vocabulary and merges in its metadata, and what else a prompt needs.

transformers builds it; here it is made sure that the text is cut before merging as the model's own tokenizer does it. A
GGUF file only names that rule, and a name that transformers does not know would silently become that of GPT-2.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from desk_rag.errors import ModelError, UnsupportedModel
from desk_rag.model.gguf.chat_frames import template_for
from desk_rag.model.gguf.config import end_ids, model_config
from desk_rag.model.gguf.header import Header

_GPT2_RULE = frozenset({"gpt-2", "default", "olmo", "phi-2", "mpt"})
_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r"})
"""Rules that are GPT-2's after every digit was cut off by itself."""
_COMPOSED = frozenset({"qwen2", "qwen35", "deepseek-r1-qwen"})
"""Rules of models whose own tokenizer normalises text to NFC."""
_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens, as GGUF numbers them."""
_KINDS = {"gpt2": "byte-level BPE", "llama": "SentencePiece"}


def read_tokenizer(header: Header) -> Tokenizer:
    """The tokenizer in the file. Raises UnsupportedModel or ModelError."""
    keys = ("model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id")
    parts = {key: header.metadata.get(f"tokenizer.ggml.{key}") for key in keys}
    _check(header, parts)
    described = {
        "tokenizer_type": parts["model"], "pre_tokenizer_type": parts["pre"], "tokens": parts["tokens"],
        "scores": parts["scores"], "token_type": parts["token_type"], "merges": parts["merges"],
    }  # fmt: skip
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

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
    if kind == "gpt2" and (pre or "default") not in _known_rules():
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


def _known_rules() -> frozenset[str]:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    return _GPT2_RULE | _SINGLE_DIGITS | frozenset(GGUF_PRE_TOKENIZER_SPLITS)


def _set_rule(tokenizer: Tokenizer, rule: str, *, byte_level: bool) -> None:
    """Complete what transformers leaves out of the rule by which text is cut."""
    from tokenizers import normalizers, pre_tokenizers

    if byte_level and rule in _SINGLE_DIGITS:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if byte_level and rule in _COMPOSED and tokenizer.normalizer is None:
        tokenizer.normalizer = normalizers.NFC()
