"""One model on this machine: exactness, gate, first token both ways, questions on the sample documents; one JSON line.

For a model that was never tried with its real weights. Nothing of the user's is read and nothing is sent: the line is
printed for whoever wants to pass it on, after what it means in words.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerMode, Finished, FirstToken
from desk_rag.answering.opening import open_engine
from desk_rag.bench import exactness
from desk_rag.bench.harness import corpus, report
from desk_rag.bench.harness.agreement import is_right, token_f1
from desk_rag.config import AnswerSettings, ModelSettings, Settings
from desk_rag.ingest import pipeline
from desk_rag.ingest.background_prefill import ChunkPrefiller, PrefillTask
from desk_rag.kv.calibration.gate import run_gate
from desk_rag.kv.calibration.self_test import check_keys
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.model.language_model import LanguageModel
from desk_rag.store.types import PendingChunk

_FEWEST = 8
"""Questions below which the answers show nothing."""
_ANSWER_TOKENS = 128
"""Tokens after which an answer is cut: these questions ask for one fact."""


def main(argv: Sequence[str]) -> int:
    """Run everything and print the result; returns an exit code. Raises DeskRagError subclasses."""
    parser = argparse.ArgumentParser(prog="desk-rag bench model", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", required=True, help="a directory, a GGUF file, an Ollama name or ORG/NAME")
    parser.add_argument("--quantization", default="none", choices=["none", "nf4", "int8", "int4"])
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--questions", type=int, default=20, help="most questions to ask")
    parser.add_argument("--seconds", type=float, default=240, help="no further question after so many")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    options = parser.parse_args(list(argv))
    chosen = ModelSettings(name=options.model, quantization=options.quantization, device=options.device)
    questions = corpus.questions(None)[: options.questions]
    with tempfile.TemporaryDirectory(prefix="desk-rag-bench-") as place:
        began = time.perf_counter()
        limits = AnswerSettings(max_new_tokens=_ANSWER_TOKENS)
        engine = open_engine(Settings(data_dir=Path(place), model=chosen, answer=limits), writer=True)
        try:
            loaded = time.perf_counter() - began
            result = {"load_s": round(loaded, 1), **_facts(engine.model), **_checks(engine.model)}
            result |= _answers(engine, questions, began + options.seconds)
        finally:
            engine.close()
    for name, value in result.items():
        if name != "answers":
            print(f"{name}: {value}")
    print("\n".join(meaning(result)))
    report.finish({"bench": "model", "model": options.model, **report.environment(), **result}, options.out)
    return 0


def _facts(model: LanguageModel) -> dict[str, object]:
    spec, layout = model.spec, model.spec.layout
    return {
        "model_type": spec.support.model_type,
        "parameters": spec.num_parameters,
        "weight_quantization": spec.weight_quantization,
        "dtype": str(spec.dtype).removeprefix("torch."),
        "layers": spec.num_layers,
        "kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "key_tap": layout.key_tap.value,
        "interleaved": layout.interleaved,
        "layers_without_position": layout.has_layers_without_position,
    }


def _checks(model: LanguageModel) -> dict[str, object]:
    """Errors of rotated keys and of stitched logits, and what coding the cache in 8 bits costs."""
    with model.device:  # where tensors are made unless told otherwise
        logits = exactness.logits_of(model)
    gate = run_gate(model, prefill_prefix(model))
    return {
        "key_error": float(f"{check_keys(model):.2e}"),
        "stitched_error": float(f"{exactness.relative(logits.stitched, logits.masked):.2e}"),
        "stitched_top1": round(float((logits.stitched.argmax(-1) == logits.masked.argmax(-1)).float().mean()), 4),
        "unmoved_error": float(f"{exactness.relative(logits.unmoved, logits.masked):.2e}"),
        "gate_kl": float(f"{gate.score.mean_kl:.2e}"),
        "gate_top1": round(gate.score.top1, 4),
        "gate_raw_layers": sum(layer.raw for layer in gate.scheme.layers),
        "needles": f"{gate.needles_found} of {gate.needles_expected}",
    }


def _answers(engine: AnswerEngine, asked: Sequence[corpus.Question], deadline: float) -> dict[str, object]:
    """Ask by full prefill, make the caches of the passages that were read, and ask from them, while there is time."""
    corpus.sync(engine.store, corpus.sample_folder(), engine.model.prompt)
    for _ in pipeline.embed_pending(engine.store, engine.embedder, lambda: False):
        pass
    seconds: dict[str, list[float]] = {"cached": [], "full": []}
    right = dict.fromkeys(seconds, 0)
    alike: list[float] = []
    rows: list[dict[str, str]] = []
    cold = 0
    engine.store.register_model(engine.serving.prefix_variants.namespaces, None)
    prefiller = ChunkPrefiller(engine.store, engine.serving, engine.turn, lambda: False)
    for question in asked:
        if rows and time.perf_counter() > deadline:
            break
        texts = {}
        for name, mode in (("full", AnswerMode.FULL), ("cached", AnswerMode.CACHED)):
            first, answer = _ask(engine, question, mode)
            if mode is AnswerMode.FULL:
                _make_caches(engine, prefiller, answer)
            else:
                cold += sum(not source.warm for source in answer.sources)
            seconds[name].append(first)
            right[name] += is_right(question, answer)
            texts[name] = answer.text
        alike.append(token_f1(texts["cached"], texts["full"]))
        rows.append({"question": question.text} | {name: text[:400] for name, text in texts.items()})
    return {
        "questions": len(rows),
        "questions_left_out": len(asked) - len(rows),
        "passages_without_cache": cold,
        "first_token_cached_ms": round(statistics.median(seconds["cached"]) * 1000, 1),
        "first_token_full_ms": round(statistics.median(seconds["full"]) * 1000, 1),
        "right_cached": right["cached"],
        "right_full": right["full"],
        "answers_alike_f1": round(statistics.fmean(alike), 3),
        "answers": rows,
    }


def _make_caches(engine: AnswerEngine, prefiller: ChunkPrefiller, answer: Answer) -> None:
    """Prefill the passages of an answer, as idle time does for all."""
    variant = engine.serving.prefix_variants.variants[0]
    for source in answer.sources:
        if not source.warm:
            chunk = PendingChunk(source.chunk_id, source.text, source.path)
            prefiller.prefill(PrefillTask(chunk, variant, engine.serving))


def meaning(result: Mapping[str, Any]) -> list[str]:
    """Say in sentences what the numbers of a result allow to say, and what they do not."""
    stitched, unmoved = result["stitched_error"], result["unmoved_error"]
    asked, cached, full = result["questions"], result["right_cached"], result["right_full"]
    lines = [
        "",
        f"Caches: answers from moved caches differ by {stitched:.1e} from one pass over everything (keys left at their "
        f"old places: {unmoved:.1e}); 8-bit caches by a KL of {result['gate_kl']:.1e}.",
        f"Speed here: {result['first_token_cached_ms']:.0f} ms to the first token from caches, "
        f"{result['first_token_full_ms']:.0f} without.",
        f"Answers: {cached} of {asked} right from caches, {full} without.",
    ]
    if asked < _FEWEST:
        lines.append(
            f"{asked} question{'s' if asked > 1 else ''}: that the answers are right or wrong shows nothing, and the "
            "times are of single runs. The line on caches holds all the same. A higher --seconds or a GPU asks more."
        )
    elif not full:
        lines.append(
            "Without caches none was right, so these answers say nothing about caches: this is no model that answers "
            "such questions, or its prompt is not in the form that it was trained with."
        )
    elif cached < full:
        lines.append(
            f"Caches cost {full - cached} of {full} right answers; {asked} questions cannot tell much less than a "
            "quarter from chance. `desk-rag help recompute` and `desk-rag help fine-tuning` say what helps."
        )
    else:
        lines.append(f"Caches cost no right answer; {asked} questions cannot tell a small loss from none.")
    if result["questions_left_out"]:
        lines.append(f"{result['questions_left_out']} questions were not asked for want of time (--seconds).")
    if result["passages_without_cache"]:
        lines.append(f"{result['passages_without_cache']} passages had no cache, so the time from caches is too long.")
    return [*lines, "One folder of 28 short English documents was asked about; yours may differ.", ""]


def _ask(engine: AnswerEngine, question: corpus.Question, mode: AnswerMode) -> tuple[float, Answer]:
    """Seconds to the first token, and the answer."""
    first, answer = float("nan"), None
    engine.forget_read()
    for event in engine.ask(question.text, mode=mode):
        if isinstance(event, FirstToken):
            first = event.timings.ttft
        elif isinstance(event, Finished):
            answer = event.answer
    assert answer is not None
    return first, answer
