"""Measure the cost of fine-tuning: LoRA over bf16 and nf4 weights, random models of published shapes.

Measures tokens per second, time per step and peak memory of the training loop that ships, and checks that a run which
was stopped half-way and resumed ends where an unbroken one does. The weights are random, so losses say nothing about
quality; that they fall says that gradients arrive. Without a GPU the base is fp32 and nf4 is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from desk_rag.bench.harness import report
from desk_rag.bench.models.tiny_models import byte_tokenizer
from desk_rag.config import ModelSettings
from desk_rag.finetune.data import QA, Sample
from desk_rag.finetune.run import Report, Task, run
from desk_rag.finetune.settings import TrainSettings
from desk_rag.finetune.trainer import TrainProgress
from desk_rag.kv.calibration.texts import GROUPS
from desk_rag.model import adapters

_SHAPES: dict[str, dict[str, int]] = {
    "qwen2.5-0.5b": {
        "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2,
    },
    "qwen2.5-1.5b": {
        "vocab_size": 151_936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2,
    },
    "tiny": {
        "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip
"""Shapes from the models' own config.json; 'tiny' is for tests."""
_WARM = 3
"""Steps that are left out of the time per step: first kernels, first allocations."""


@dataclass(frozen=True, slots=True)
class Trained:
    """One run, and what it left."""

    report: Report
    step_seconds: tuple[float, ...]
    wall_seconds: float
    """Loading, measuring before and after, and writing included."""
    weights: dict[str, torch.Tensor]


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code."""
    options = _options(argv)
    gpu = torch.cuda.is_available()
    quantizations = ["none", "nf4"] if gpu else ["none"]
    settings = TrainSettings(
        steps=options.steps, rows_per_step=options.rows, rows_at_once=options.rows_at_once,
        row_tokens=options.row_tokens, checkpointing=options.checkpointing, save_every=max(1, options.steps // 2),
    )  # fmt: skip
    results = []
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        base = _write_model(Path(folder) / "base", options.shape)
        for quantization in quantizations:
            results.append(_measure(base, Path(folder), quantization, settings))
    headings = ["weights", "tokens/s", "ms per step", "peak GiB", "first loss", "last loss", "resumed differs by"]
    print(report.table(headings, [_cells(result) for result in results]))
    print()
    report.finish(
        {
            "bench": "finetune", **report.environment(), "shape": options.shape, "rank": settings.lora_rank,
            "steps": options.steps, "rows": options.rows, "rows_at_once": options.rows_at_once,
            "row_tokens": options.row_tokens, "checkpointing": options.checkpointing, "runs": results,
        },
        options.out,
    )  # fmt: skip
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench finetune", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shape", choices=list(_SHAPES), default="qwen2.5-0.5b")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rows-at-once", type=int, default=4)
    parser.add_argument("--row-tokens", type=int, default=2048)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the model and the runs are written, about 2 GB")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _measure(base: Path, folder: Path, quantization: str, settings: TrainSettings) -> dict[str, Any]:
    model = ModelSettings.model_validate({"name": str(base), "quantization": quantization})
    task = Task(model, settings, _samples(), folder / f"{quantization}-through", held_out=0.0, eval_contexts=0)
    through = _train(task, stop_after=None)
    halted = replace(task, out=folder / f"{quantization}-halted")
    _train(halted, stop_after=settings.steps // 2)
    resumed = _train(replace(halted, resume=True), stop_after=None)
    steady = through.step_seconds[_WARM:] or through.step_seconds
    tokens = settings.rows_per_step * settings.row_tokens
    losses = through.report.losses
    return {
        "quantization": quantization,
        "tokens_per_second": round(tokens / statistics.median(steady)),
        "step_ms": report.Spread.of(steady).scaled(1e3),
        "peak_mib": round(through.report.device_mib),
        "wall_seconds": round(through.wall_seconds, 1),
        "losses": [round(losses[0], 4), round(losses[-1], 4)],
        "resumed_largest_difference": _difference(through.weights, resumed.weights),
        "resumed_loss_difference": abs(resumed.report.losses[-1] - losses[-1]),
    }


def _train(task: Task, *, stop_after: int | None) -> Trained:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    ticks = [time.perf_counter()]

    def on_step(_now: TrainProgress) -> None:
        ticks.append(time.perf_counter())  # the loss was read before, so the device is done

    began = time.perf_counter()
    outcome = run(
        task, evaluate=None, say=lambda text: print(f"{task.out.name}: {text}", file=sys.stderr), on_step=on_step,
        stop=lambda: stop_after is not None and len(ticks) > stop_after,
    )  # fmt: skip
    file = task.out / adapters.WEIGHTS
    steps = tuple(after - before for before, after in zip(ticks[1:], ticks[2:], strict=False))
    return Trained(outcome, steps, time.perf_counter() - began, load_file(file) if file.is_file() else {})


def _difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest difference of an adapter weight, as a share of the largest weight of its tensor."""
    assert one.keys() == other.keys()
    return max(
        float((one[name] - other[name]).abs().max() / one[name].abs().max().clamp(min=1e-12)) for name in one
    )  # fmt: skip


def _samples() -> tuple[Sample, ...]:
    return tuple(Sample(group.chunks, (QA(group.question, group.needle),)) for group in GROUPS)


def _write_model(directory: Path, shape: str) -> Path:
    """A random model on disk; byte tokens, of which a large vocabulary leaves most unused."""
    torch.manual_seed(0)
    config = Qwen2Config(
        **_SHAPES[shape], max_position_embeddings=8192, eos_token_id=2, pad_token_id=0, bos_token_id=None,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        dtype="bfloat16" if torch.cuda.is_available() else "float32",
    )  # fmt: skip
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        module: Any = Qwen2ForCausalLM(config)
    module.to(torch.bfloat16 if device == "cuda" else torch.float32).save_pretrained(directory)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}), encoding="utf-8")
    return directory


def _cells(result: dict[str, Any]) -> list[str]:
    first, last = result["losses"]
    return [
        {"none": "bf16" if torch.cuda.is_available() else "fp32"}.get(result["quantization"], result["quantization"]),
        f"{result['tokens_per_second']:,}",
        f"{result['step_ms'][2]:.0f}",
        f"{result['peak_mib'] / 1024:.2f}",
        f"{first:.3f}",
        f"{last:.3f}",
        f"{result['resumed_largest_difference']:.1e}",
    ]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
