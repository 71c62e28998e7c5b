"""Chat templates for GGUF files that hold none, chosen by the tokens that mark turns in their vocabulary.

Some files in Ollama's library keep the template beside the file, in Ollama's own language. The marks of turns are
tokens that a model was trained with, and each set of them belongs to one form; a file without them gets none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """One form of turns."""

    tokens: tuple[str, ...]
    """Tokens that a vocabulary must have for it."""
    template: str
    """Jinja, as in tokenizer_config.json."""


def _turns(opening: str, closing: str, answer: str, *, begin: str = "") -> str:
    """A template of turns that differ by the role in `opening` alone."""
    turn = f"{opening}{{{{ message['content'] }}}}{closing}".replace("ROLE", "{{ message['role'] }}")
    ending = f"{{{{ {answer!r} }}}}" if answer else ""  # Jinja drops a template's last newline
    return f"{begin}{{% for message in messages %}}{turn}{{% endfor %}}{ending}"


_FIRST_ROLE = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
_BOS = "{{ bos_token }}"
_HARMONY = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\n\nReasoning: low\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
    "<|end|>{% for message in messages %}{% if message['role'] == 'system' %}"
    "<|start|>developer<|message|># Instructions\n\n{{ message['content'] }}\n\n<|end|>"
    "{% else %}<|start|>{{ message['role'] }}{% if message['role'] == 'assistant' %}<|channel|>final{% endif %}"
    "<|message|>{{ message['content'] }}<|end|>{% endif %}{% endfor %}"
    "<|start|>assistant"
)
FRAMES = (
    ChatFrame(("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"), _HARMONY),  # gpt-oss
    ChatFrame(
        ("<|im_start|>", "<|im_sep|>", "<|im_end|>"),  # Phi-4
        _turns("<|im_start|>ROLE<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    ),
    ChatFrame(
        ("<|im_start|>", "<|im_end|>"),  # ChatML: Qwen, SmolLM and many others
        _turns("<|im_start|>ROLE\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    ),
    ChatFrame(
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),  # Llama 3
        _turns(
            "<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>",
            "<|start_header_id|>assistant<|end_header_id|>\n\n", begin=_BOS,
        ),
    ),
    ChatFrame(
        ("<start_of_turn>", "<end_of_turn>"),  # Gemma, which has no system role
        _turns("<start_of_turn>ROLE\n", "<end_of_turn>\n", "<start_of_turn>model\n", begin=_FIRST_ROLE + _BOS),
    ),
    ChatFrame(
        ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),  # Granite 3
        _turns(
            "<|start_of_role|>ROLE<|end_of_role|>", "<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>"
        ),
    ),
    ChatFrame(
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),  # Phi-3, Phi-4-mini
        _turns("<|ROLE|>\n", "<|end|>\n", "<|assistant|>\n"),
    ),
    ChatFrame(
        ("[INST]", "[/INST]"),  # Mistral since v0.3; instructions stand in the first turn
        _turns("[INST] ", "[/INST]", "", begin=_FIRST_ROLE + _BOS),
    ),
)  # fmt: skip
"""The first whose tokens are all there is taken."""


def template_for(tokens: Collection[str]) -> str:
    """The chat template for a vocabulary; empty if it marks no turns."""
    known = set(tokens)
    return next((frame.template for frame in FRAMES if known.issuperset(frame.tokens)), "")
