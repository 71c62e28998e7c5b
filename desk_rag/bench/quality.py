"""Compare the answers of full prefill with those from stitched, primed and recomputed chunk KV.

`evaluate` is for other modules. Every mode answers the same questions over the same chunks in
the same order. Scores come with 95 % bootstrap intervals and as shares of full prefill's; beside them stand the share
of chunk tokens that was really recomputed and the time to the first token from chunk KV in memory.

Forms of --data (.jsonl, .json, either with .xz; may be repeated):
  own        contexts, question, answers[, gold, evidence, task] | passage, title, question[, answer, answers]
             | texts, qas[, evidence]
  rgb        en.json, en_int.json, en_fact.json of RGB, at every share of --noise (1 is rejection)
  longbench  multifieldqa, 2wikimqa, hotpotqa, musique, triviaqa, dureader of LongBench
  squad      SQuAD v1.1 or v2.0
--niah takes no data: single_1, single_2, single_3, multikey_1, multikey_2, multikey_3, multivalue, multiquery, or all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.bench.answer_quality.data.datasets import Form, load_needles, load_samples
from desk_rag.bench.answer_quality.data.distractors import Drawing, Order
from desk_rag.bench.answer_quality.data.sample import Sample
from desk_rag.bench.answer_quality.evaluation import Coding, Progress, QualitySettings, evaluate
from desk_rag.bench.answer_quality.modes import FULL, STITCHED, Mode, Way, parse_modes
from desk_rag.bench.answer_quality.score import Judge
from desk_rag.bench.answer_quality.tables import Report
from desk_rag.bench.baselines import selectors
from desk_rag.bench.harness import report
from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError
from desk_rag.kv.prefix_variants.variants import parse_variants
from desk_rag.sanitize import clean

if TYPE_CHECKING:
    from desk_rag.answering.evidence.selection import EvidenceSelector
    from desk_rag.documents.sentences import TokenCounter
    from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
    from desk_rag.kv.shift import PlaceShift
    from desk_rag.model.language_model import LanguageModel

__all__ = [
    "FULL", "STITCHED", "Coding", "Judge", "Mode", "QualitySettings", "Report", "Sample", "Way", "evaluate", "main",
]  # fmt: skip

_FOOT = (
    "Percent ± half of the 95 % bootstrap interval. KL(full prefill || mode) is of the first answer token, in nats; "
    "top-1 agreement is with what full prefill decoded: what was chosen (quotes, mostly answers too) does not count. "
    "TTFT: median, from chunk KV in memory, selection included."
)


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    from desk_rag.model.loading import load_model

    options = _arguments(argv)
    modes = parse_modes(options.modes, options.selectors.split(","), _numbers(options.ratios, "--ratios"))
    rungs = parse_variants(options.rungs, "--rungs")
    if not options.data and not options.niah:
        raise ConfigError("There is nothing to measure.", remedy="Give --data FILE or --niah all.")
    if options.write_samples is not None:
        return _write(options)
    model = load_model(_settings(options.model, options))
    samples = _samples(options, model.prompt)
    settings = QualitySettings(options.max_new_tokens, Coding(options.kv), options.batch, rungs)
    began = time.perf_counter()
    results: dict[str, Report] = {}
    for quotes, (chooser, judge) in _ways(model, options).items():
        results[quotes] = evaluate(
            model,
            samples,
            modes,
            settings,
            folder=options.folder,
            auxiliary=_auxiliary(modes, options),
            judge=judge,
            chooser=chooser,
            shift=_shift(options.shift, model),
            progress=_progress(began),
        )
    seconds = time.perf_counter() - began
    for quotes, result in results.items():
        if len(results) > 1:
            print(f"\nQuotes: {quotes}")
        print(clean(result.table(markdown=options.markdown)))  # tasks are named by the file
    print(_FOOT)
    results_by_quotes = {quotes: result.to_json() for quotes, result in results.items()}
    report.finish(
        {
            "bench": "quality",
            **report.environment(),
            "model": options.model,
            "device": model.device.type,
            "kv": options.kv,
            "rungs": list(rungs),
            "judge": options.judge,
            "quotes": ",".join(results_by_quotes),
            "data": [*(path.name for path in options.data), *options.niah],
            "chunks": options.chunks,
            "near": options.near,
            "order": options.order,
            "seed": options.seed,
            "questions": len(samples),
            "seconds": round(seconds, 1),
            **results_by_quotes.pop(next(iter(results_by_quotes))),
            **results_by_quotes,
        },
        options.out,
    )
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    about, _, forms = (__doc__ or "").partition("\nForms of")
    parser = argparse.ArgumentParser(
        prog="desk-rag bench quality",
        description=about.split("\n\n")[0],
        epilog="Forms of" + forms,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = parser.add_argument_group("data")
    data.add_argument("--data", type=Path, action="append", default=[], help="a file (may be repeated)")
    data.add_argument("--form", default="own", choices=[form.value for form in Form], help="of --data")
    data.add_argument("--niah", action="append", default=[], help="a needle task, or all (may be repeated)")
    data.add_argument("--limit", type=int, default=0, help="questions per file or needle task; 0: all, or 50 needles")
    data.add_argument("--chunks", type=int, default=5, help="per question, the right ones included")
    data.add_argument("--near", action="store_true", help="other chunks are those nearest in words, not any")
    data.add_argument("--order", default="shuffled", choices=[order.value for order in Order])
    data.add_argument("--longest", type=int, default=0, help="leave out questions whose passage has more tokens")
    data.add_argument("--noise", default="0.2,0.4,0.6,0.8", help="RGB: shares of chunks that do not help")
    data.add_argument("--tokens", type=int, default=1000, help="needles: length of the haystack")
    data.add_argument("--essay", type=Path, help="needles: running text; the sample documents by default")
    data.add_argument("--chunk-tokens", type=int, default=200, help="length that long texts are cut to")
    data.add_argument("--seed", type=int, default=5)
    data.add_argument("--write-samples", type=Path, help="write the samples as JSON lines and stop")
    how = parser.add_argument_group("how")
    modes = "full, reordered, composite, parallel, ape, block, recompute:SELECTOR:RATIO, primed, primed+recompute:…"
    how.add_argument("--modes", default="full,reordered,composite,parallel", help=modes)
    how.add_argument("--selectors", default=",".join(selectors.NAMES), help="of a bare 'recompute'")
    how.add_argument("--ratios", default="0.2", help="of a bare 'recompute'")
    how.add_argument("--rungs", default="0,1,2,3,4", help="for primed modes: numbers of filler passages before a chunk")
    how.add_argument("--shift", type=Path, help="of adapted modes: what `adapt` wrote (models/*.shift.safetensors)")
    how.add_argument("--model", default="embedded", help="a model directory or ORG/NAME")
    how.add_argument("--aux-model", default="embedded", help="of the selectors 'aux' and 'aux-strict'")
    how.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    how.add_argument("--quantization", default="none", choices=["none", "nf4", "int8"], help="of the weights")
    how.add_argument("--kv", default="int8", choices=[coding.value for coding in Coding], help="coding of chunk KV")
    how.add_argument("--judge", default="none", choices=["none", "words", "embedder"], help="withhold as answers do")
    quotes = "how the embedded reader's are found"
    how.add_argument("--quotes", default="chosen", choices=["chosen", "greedy", "both"], help=quotes)
    how.add_argument("--threads", type=int, default=0, help="CPU threads; 0 is the product's own choice")
    how.add_argument("--batch", type=int, default=0, help="questions side by side; 0 chooses")
    how.add_argument("--max-new-tokens", type=int, default=160)
    how.add_argument("--folder", type=Path, help="keep answers here and go on from them; new after a change of code")
    how.add_argument("--markdown", action="store_true", help="the table in Markdown")
    how.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _settings(name: str, options: argparse.Namespace) -> ModelSettings:
    values = {
        "name": name,
        "threads": options.threads,
        "device": options.device,
        "quantization": options.quantization,
    }
    return ModelSettings.model_validate(values)


def _shift(file: Path | None, model: LanguageModel) -> PlaceShift | None:
    from desk_rag.kv.shift import from_bytes

    if file is None:
        return None
    try:
        return from_bytes(file.read_bytes())[0].to(model.device)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} holds no shift: {error}.", remedy="desk-rag adapt writes one.") from error


def _samples(options: argparse.Namespace, counter: TokenCounter) -> list[Sample]:
    drawing = Drawing(
        chunks=options.chunks,
        near=options.near,
        order=Order(options.order),
        seed=options.seed,
        limit=options.limit,
        longest=options.longest,
        noise=_numbers(options.noise, "--noise"),
    )
    samples: list[Sample] = []
    for file in options.data:
        samples += load_samples(Form(options.form), file, drawing, counter, options.chunk_tokens)
    if options.niah:
        number = options.limit or 50
        names = [name for each in options.niah for name in each.split(",")]
        samples += load_needles(
            names, options.tokens, number, options.seed, counter, options.chunk_tokens, options.essay
        )
    return samples


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        numbers = (-1.0,)
    if not numbers or not all(0 <= number <= 1 for number in numbers):
        raise ConfigError(f"{option} '{text}' is no list of shares.", remedy=f"For one: {option} 0.2,0.4")
    return numbers


def _auxiliary(modes: Sequence[Mode], options: argparse.Namespace) -> AuxiliaryModel | None:
    from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
    from desk_rag.model.loading import load_model

    if not any(mode.selector.startswith("aux") for mode in modes):
        return None
    options.quantization = "none"
    return AuxiliaryModel(load_model(_settings(options.aux_model, options)))


def _ways(model: LanguageModel, options: argparse.Namespace) -> dict[str, tuple[EvidenceSelector | None, Judge | None]]:
    """Ways of finding quotes by name: who chooses them and who judges them.

    Other models than the embedded one have no choice, as in answers.
    """
    from desk_rag.answering.evidence.selection import EvidenceSelector
    from desk_rag.answering.evidence.span_scorer import load_span_scorer
    from desk_rag.retrieval.embedding import load_embedder

    chosen = model.is_embedded and options.quotes != "greedy"
    by_embedder = options.judge == "embedder"
    embedder = load_embedder(_settings("embedded", options)) if chosen or by_embedder else None
    judging = embedder if by_embedder else None
    ways: dict[str, tuple[EvidenceSelector | None, Judge | None]] = {}
    if chosen and embedder is not None:
        pointer = load_span_scorer(embedder)
        judge = Judge(judging, pointer if by_embedder else None) if options.judge != "none" else None
        ways["chosen"] = EvidenceSelector(model.prompt, pointer), judge
    if not ways or options.quotes == "both":
        ways["greedy"] = None, Judge(judging) if options.judge != "none" else None
    return ways


def _progress(began: float) -> Progress:
    def show(done: int, total: int) -> None:
        seconds = time.perf_counter() - began
        sys.stderr.write(f"{done} of {total} questions, {seconds:.0f} s\n")

    return show


def _write(options: argparse.Namespace) -> int:
    """Needs the model's tokenizer only."""
    import json

    from desk_rag.model import weights
    from desk_rag.model.prompt import load_prompt

    settings = _settings(options.model, options)
    prompt = load_prompt(weights.resolve(settings.name, allow_download=settings.allow_download))
    lines = [json.dumps(one.to_json(), ensure_ascii=False) + "\n" for one in _samples(options, prompt)]
    options.write_samples.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} samples written to {options.write_samples}")
    return 0
