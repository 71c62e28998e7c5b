"""Models on an NVIDIA GPU: bitsandbytes weights, bf16 and fp16 exactness, answers that agree with the CPU's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from desk_rag.answering.serving_model import prepare_model
from desk_rag.config import ModelSettings
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model
from tests.kv.test_exactness import LARGEST_REFERENCE, MOST_OF_REFERENCE, half_precision_errors
from tests.models import FAMILIES, Family, build_model, byte_tokenizer, stream

pytestmark = pytest.mark.gpu

CHUNKS = [
    "Heating\nThe boiler in the cellar was serviced on 12 November by Kestrel Heating. The pressure is 1.6 bar.",
    "Bicycle\nThe frame number of the blue bicycle is WTU-4471-B. It was bought on 3 May 2021 for 649 euros.",
    "Trip\nThe train to Porto leaves at 6.52 from platform 11. Anna has the tickets.",
]


def answer(model: LanguageModel, question: str, *, full: bool = False) -> str:
    prefix = prefill_prefix(model)
    ids = [model.prompt.chunk_ids(text) for text in CHUNKS]
    cache = SlabCache(model, 2000)
    question_ids = model.prompt.question_ids(question)
    if full:
        prompt, start = [*model.prompt.prefix_ids, *(i for chunk in ids for i in chunk), *question_ids], 0
    else:
        scheme = QuantScheme.uniform(model.spec.num_layers)
        chosen = plan(prefix.num_tokens, [len(chunk) for chunk in ids])
        coded = [quantize(prefill_chunk(model, prefix, chunk), scheme) for chunk in ids]
        stitch(model, chosen, prefix, coded, build_tables(model, 2000), cache)
        prompt, start = question_ids, chosen.next_position
    return "".join(t.text for t in stream(model, cache, prompt, start, max_new_tokens=60, stop=lambda: False))


def test_the_reader_answers_on_the_gpu_as_on_the_cpu(reader: LanguageModel) -> None:
    on_gpu = load_model(ModelSettings(device="cuda"))
    assert on_gpu.device.type == "cuda"
    assert on_gpu.spec.dtype is torch.bfloat16
    for question, needle in [
        ("What is the frame number of the blue bicycle?", "WTU-4471-B"),
        ("Who has the tickets?", "Anna"),
        ("When does the train to Porto leave?", "6.52"),
    ]:
        stitched, whole = answer(on_gpu, question), answer(on_gpu, question, full=True)
        assert needle in stitched
        assert needle in whole
        assert needle in answer(reader, question)


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_bitsandbytes_weights_serve_chunk_kv(quantization: str, tmp_path: Path, reader_dir: Path) -> None:
    """The reader written out as an ordinary bf16 checkpoint, loaded through bitsandbytes, must still find its facts."""
    plain = load_model(ModelSettings(device="cpu"), pack=False)  # packed matrices are no checkpoint
    plain.module.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tmp_path / "model" / name).write_bytes((reader_dir / name).read_bytes())
    settings = {"name": str(tmp_path / "model"), "device": "cuda"}
    model = load_model(ModelSettings(**settings, quantization=quantization))  # type: ignore[arg-type]
    kinds = {type(module).__name__ for module in model.module.modules()}
    assert ("Linear4bit" if quantization == "nf4" else "Linear8bitLt") in kinds
    assert "WTU-4471-B" in answer(model, "What is the frame number of the blue bicycle?")

    prepared = prepare_model(model, tmp_path / "data")
    unquantized = prepare_model(load_model(ModelSettings(**settings)), tmp_path / "data")  # type: ignore[arg-type]
    assert prepared.namespace != unquantized.namespace
    print(f"{quantization}: gate {prepared.gate.scheme.label} KL {prepared.gate.score.mean_kl:.2e}")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_stitching_in_half_precision_errs_as_little_as_transformers(family: Family, dtype: torch.dtype) -> None:
    error, reference = half_precision_errors(family, dtype, torch.device("cuda"))
    print(f"{family.name} {dtype}: relative error {error:.2e}, of transformers {reference:.2e}")
    assert 0.0 < reference < LARGEST_REFERENCE
    assert error < MOST_OF_REFERENCE * reference


def test_a_chat_model_directory_loads_with_its_template(tmp_path: Path) -> None:
    """A random Qwen2 with a chat template goes the generic way on the GPU: template, live prefill, stitch, decode."""
    model = build_model(next(family for family in FAMILIES if family.name == "qwen2"))
    model.module.config.max_position_embeddings = 4096
    model.module.save_pretrained(tmp_path)
    tokenizer = byte_tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|spare_1|>", "<|spare_2|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
        "{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = load_model(ModelSettings(name=str(tmp_path), device="cuda"))
    assert loaded.spec.support.model_type == "qwen2"
    assert loaded.prompt.parts.chunk_open == "<document>\n"
    assert isinstance(answer(loaded, "What?"), str)
