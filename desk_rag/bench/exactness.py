"""A table of how exact stitching is: every family and RoPE scaling that is accepted, in fp32, bf16 and fp16.

In fp32 stitched and masked logits are compared as they are. In half precision two right ways of computing differ by
rounding, so both are also set beside fp32: stitching is as good as the model itself when its column is no larger. The
negative control leaves the chunks where they were prefilled; were it small, the rest would prove nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from desk_rag.bench.harness import report
from desk_rag.bench.models.masked import masked_forward
from desk_rag.bench.models.tiny_models import FAMILIES, Family, build_model
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import Placement, StitchPlan, plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import keep_exact
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.model.language_model import LanguageModel

_CASES = (
    (("The boiler was serviced.", "Rent is due on Monday.", "Anna moved to Porto, then to Lyon."), "When is rent due?"),
    (("A short one.", "The ferry leaves Harwick at 7.40 and takes five hours."), "When does the ferry leave?"),
    (("Beans are kept dry.", "The code is 58213.", "The pump runs at night.", "It rained."), "What is the code?"),
)
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_SIZES_IN_FP32 = ("max abs error", "relative error", "unmoved chunks")


@dataclass(frozen=True, slots=True)
class Logits:
    """One model's logits over the question tokens of all cases, fp32 [tokens, vocab]."""

    stitched: torch.Tensor
    masked: torch.Tensor
    unmoved: torch.Tensor
    """Stitched with every chunk left right behind the prefix: wrong on purpose."""


@dataclass(frozen=True, slots=True)
class Row:
    """Result for one family in one dtype; errors in units of the logits' standard deviation."""

    family: str
    dtype: str
    max_error: float
    """Largest difference of a logit, stitched against the masked forward pass of the same dtype."""
    relative: float
    """Norm of the difference over the norm of the masked forward pass."""
    top1: float
    """Share of question tokens with the same most probable successor."""
    stitched_off: float
    """Relative error of stitched against the masked forward pass in fp32."""
    masked_off: float
    """The same of the masked forward pass of this dtype: what the dtype itself costs."""
    control: float
    """Largest difference of the negative control, in the units of `max_error`."""


def measure(family: Family, dtype: torch.dtype, exact: Logits | None) -> tuple[Row, Logits]:
    """Compare one family in one dtype; `exact` is its fp32 result, None while that is what is being made."""
    got = logits_of(build_model(family, dtype))
    reference = (exact or got).masked
    spread = got.masked.std()
    row = Row(
        family=family.name,
        dtype=_NAMES[dtype],
        max_error=float((got.stitched - got.masked).abs().max() / spread),
        relative=relative(got.stitched, got.masked),
        top1=float((got.stitched.argmax(-1) == got.masked.argmax(-1)).float().mean()),
        stitched_off=relative(got.stitched, reference),
        masked_off=relative(got.masked, reference),
        control=float((got.unmoved - got.masked).abs().max() / spread),
    )
    return row, got


def main(argv: Sequence[str]) -> int:
    """Measure all families, print the tables, write them to a document; returns an exit code."""
    parser = argparse.ArgumentParser(prog="desk-rag bench exactness", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--family", action="append", help="only this one (may be repeated)")
    parser.add_argument("--document", type=Path, default=Path(__file__).with_name("EXACTNESS.md"))
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    options = parser.parse_args(list(argv))
    rows = []
    for family in FAMILIES:
        if options.family and family.name not in options.family:
            continue
        exact: Logits | None = None
        for dtype in _NAMES:
            row, got = measure(family, dtype, exact)
            exact = exact or got
            rows.append(row)
    if not rows:
        parser.error("no such family: " + ", ".join(options.family))
    text = _document(rows)
    options.document.write_text(text, encoding="utf-8")
    print(text)
    fp32 = [row for row in rows if row.dtype == "fp32"]
    half = [row for row in rows if row.dtype != "fp32"]
    summary = {
        "families": len(fp32),
        "fp32_max_error": float(f"{max(row.max_error for row in fp32):.2e}"),
        "fp32_max_relative": float(f"{max(row.relative for row in fp32):.2e}"),
        "fp32_least_control": round(min(row.control for row in fp32), 3),
        "half_least_top1": round(min(row.top1 for row in half), 4),
        "half_most_over_dtype": round(max(row.stitched_off / row.masked_off for row in half), 3),
    }
    report.finish({"bench": "exactness", **report.environment(), **summary}, options.out)
    return 0


def logits_of(model: LanguageModel) -> Logits:
    """Logits of the three ways over all cases."""
    parts = [_one_case(model, texts, question) for texts, question in _CASES]
    stitched, masked, unmoved = (torch.cat(each).float() for each in zip(*parts, strict=True))
    return Logits(stitched, masked, unmoved)


def _one_case(model: LanguageModel, texts: Sequence[str], question: str) -> tuple[torch.Tensor, ...]:
    ids = [model.prompt.chunk_ids(text) for text in texts]
    question_ids = model.prompt.question_ids(question)
    chosen = plan(len(model.prompt.prefix_ids), [len(chunk) for chunk in ids])
    unmoved = StitchPlan(
        chosen.prefix_tokens,
        tuple(Placement(p.slot, chosen.prefix_tokens, p.num_tokens) for p in chosen.placements),
        chosen.next_position,
    )
    starts = [placement.position for placement in chosen.placements]
    masked = masked_forward(model, ids, question_ids, starts, chosen.next_position)
    return _stitched(model, ids, question_ids, chosen), masked, _stitched(model, ids, question_ids, unmoved)


def _stitched(model: LanguageModel, ids: Sequence[list[int]], asked: list[int], chosen: StitchPlan) -> torch.Tensor:
    prefix = prefill_prefix(model)
    chunks = [keep_exact(prefill_chunk(model, prefix, chunk)) for chunk in ids]
    size = chosen.next_position + len(asked)
    cache = SlabCache(model, size)
    stitch(model, chosen, prefix, chunks, build_tables(model, size), cache)
    return model.forward_all(torch.tensor(asked), cache, chosen.next_position)


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    """Norm of the difference over the norm of `other`."""
    return float((one - other).norm() / other.norm())


def _document(rows: Sequence[Row]) -> str:
    fp32 = [
        [row.family, f"{row.max_error:.1e}", f"{row.relative:.1e}", f"{row.control:.2f}"]
        for row in rows
        if row.dtype == "fp32"
    ]
    half = [
        [row.family, row.dtype, f"{row.top1:.1%}", f"{row.max_error:.3f}",
         f"{row.stitched_off:.4f}", f"{row.masked_off:.4f}", f"{row.control:.2f}"]
        for row in rows
        if row.dtype != "fp32"
    ]  # fmt: skip
    half_headings = [
        "model", "dtype", "top-1 agreement", "max abs error", "stitched off fp32", "masked off fp32", "unmoved chunks"
    ]  # fmt: skip
    return "\n".join([
        "# How exact stitching is",
        "",
        "Made by `desk-rag bench exactness`; do not edit. Small random models with peaked attention; stitched,",
        "unquantised chunk KV at reordered positions against one masked forward pass in which each chunk sees its own",
        f"copy of the shared prefix right before it; {len(_CASES)} contexts. Errors are differences of logits in units",
        "of their standard deviation; relative errors are of norms. \"Unmoved chunks\" is the negative control: the",
        "same comparison with every chunk left where it was prefilled.",
        "",
        "## fp32",
        "",
        report.table(["model", *_SIZES_IN_FP32], fp32, markdown=True),
        "",
        "## Half precision",
        "",
        "\"Off fp32\" is the relative error against the masked forward pass in fp32: what the dtype costs either way.",
        "",
        report.table(half_headings, half, markdown=True),
        "",
    ])  # fmt: skip
