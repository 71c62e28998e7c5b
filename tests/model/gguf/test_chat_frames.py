"""A GGUF file without a chat template gets the form that the tokens in its vocabulary belong to."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
from gguf import GGMLQuantizationType as Kind

from desk_rag.model import chat_template
from desk_rag.model.gguf.chat_frames import FRAMES, template_for
from desk_rag.model.prompt import load_prompt
from tests.model.gguf.families import TINY, write_tiny
from tests.model.gguf.writing import READER, add_shape, add_tensors, add_tokenizer, close, reader_state

SHOWN = {
    "gpt-oss": "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\n\nReasoning: low\n\n# Valid channels: analysis, commentary, final. Channel must be "
    "included for every message.<|end|><|start|>developer<|message|># Instructions\n\nS\n\n<|end|>"
    "<|start|>user<|message|>U<|end|><|start|>assistant",
    "phi-4": "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>U<|im_end|>"
    "<|im_start|>assistant<|im_sep|>",
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n",
    "llama-3": "<b><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>"
    "\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "<b><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\n",
    "granite": "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>U"
    "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    "phi-3": "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\n",
    "mistral": "<b>[INST] S\n\nU[/INST]",
}  # fmt: skip
TURNS = (
    [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
    [{"role": "user", "content": "S\n\nU"}],
)


@pytest.mark.parametrize(("name", "frame"), zip(SHOWN, FRAMES, strict=True), ids=list(SHOWN))
def test_each_form_is_written_as_its_models_were_trained(name: str, frame: object, tmp_path: Path) -> None:
    template = template_for(["<unk>", *frame.tokens])  # type: ignore[attr-defined]
    assert chat_template.render(tmp_path, template, {"bos_token": "<b>"}, TURNS) == SHOWN[name]


def test_a_file_without_a_template_is_asked_in_its_own_form(tmp_path: Path) -> None:
    fields = json.loads((READER / "config.json").read_text())
    described = json.loads((READER / "tokenizer.json").read_text())
    described = json.loads(json.dumps(described).replace("<|doc_", "<|other_"))  # now a chat model like others
    writer = gguf.GGUFWriter(tmp_path / "bare.gguf", "qwen3")
    add_shape(writer, fields)
    add_tokenizer(writer, described, eos=fields["eos_token_id"])
    add_tensors(writer, reader_state(), gguf.MODEL_ARCH.QWEN3, fields["num_hidden_layers"], Kind.F16)
    close(writer)
    prompt = load_prompt(tmp_path / "bare.gguf")
    assert prompt.parts.head.startswith("<|im_start|>system\nAnswer the question")
    assert prompt.parts.tail == "<|im_end|>\n<|im_start|>assistant\n" and prompt.writes


def test_words_that_are_no_tokens_are_no_marks(tmp_path: Path) -> None:
    assert template_for(["<unk>", "[INST]", "the"]) == ""
    write_tiny(tmp_path / "a.gguf", TINY["qwen2"], Kind.F32)
    assert "<|im_start|>" in load_prompt(tmp_path / "a.gguf").parts.head
