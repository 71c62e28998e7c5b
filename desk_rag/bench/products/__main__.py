"""Products of few rows with nf4 matrices: our kernel, bitsandbytes, bf16, and the time that reading the bytes takes.

The matrices are those of one decoder layer of a published shape, what shares an input side by side, several of each one
after the other, so that none is in the GPU's cache, in a recorded graph. The bound is their bytes over the rate of a
copy within the GPU. Values are random.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from desk_rag.bench.card.__main__ import _bandwidth
from desk_rag.bench.card.processors import on_part
from desk_rag.bench.harness import report
from desk_rag.bench.models import shapes
from desk_rag.bench.models.shapes import ModelShape
from desk_rag.errors import ConfigError
from desk_rag.kv.nf4 import choice
from desk_rag.kv.nf4.choice import Nf4Product, Nf4Products
from desk_rag.model.requantize import quantized_linear

if TYPE_CHECKING:
    from desk_rag.kv.nf4.launcher import Nf4Tuning


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    if not torch.cuda.is_available():
        raise ConfigError("These products are measured on an NVIDIA GPU, and torch sees none.")
    device = torch.device("cuda", torch.cuda.current_device())
    shape, counts = shapes.model_shape(options.shape), [int(text) for text in options.rows.split(",")]
    rate = _bandwidth(device)
    entries: list[dict[str, object]] = []
    with on_part(options.multiprocessors):
        for name, parts in _matrices(shape).items():
            entries += _measured(name, parts, counts, rate, device, options)
    ours, library, bound = (
        {count: sum(float(str(one[way])) for one in entries if one["rows"] == count) for count in counts}
        for way in ("kernel_us", "bitsandbytes_us", "bound_us")
    )
    rows = [
        [
            str(one["matrix"]), str(one["rows"]), *(f"{one[way]:.1f}" for way in _WAYS), f"{one['share_of_bound']:.0%}",
            f"{one['bitsandbytes_share']:.0%}", f"{one['error']:.1e}",
        ]
        for one in entries
    ]  # fmt: skip
    rows += [
        ["layer", str(count), f"{ours[count]:.1f}", f"{library[count]:.1f}", "", f"{bound[count]:.1f}",
         f"{bound[count] / ours[count]:.0%}", f"{bound[count] / library[count]:.0%}", ""]
        for count in counts
    ]  # fmt: skip
    print(f"{options.shape}, microseconds per product; a copy runs at {rate / 1e9:.0f} GB/s")
    headings = ["matrix", "rows", "kernel", "bitsandbytes", "bf16", "bound", "of bound", "bnb of bound", "error"]
    print(report.table(headings, rows))
    for one in entries:
        if "sweep" in one:
            print(f"  {one['matrix']}, {one['rows']} rows, best tunings: {one['sweep']}")
    report.finish(
        {
            "bench": "products", **report.environment(), "shape": options.shape,
            "multiprocessors": options.multiprocessors, "gpu_bytes_per_s": rate,
            "values": "random", "products": entries,
        },
        options.out,
    )  # fmt: skip
    return 0


_WAYS = ("kernel_us", "bitsandbytes_us", "bf16_us", "bound_us")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench products", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shape", default="qwen3-4b", help="a model shape of `bench card`")
    parser.add_argument("--rows", default="1,16,64", help="numbers of rows, at most 128")
    parser.add_argument("--copies", type=int, default=8, help="matrices of each kind")
    parser.add_argument("--sweep", action="store_true", help="try other divisions of the kernel's work")
    parser.add_argument("--multiprocessors", type=int, default=0, help="run on this many of the GPU's; 0 for all")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _matrices(shape: ModelShape) -> dict[str, tuple[tuple[int, ...], int]]:
    """Rows of the matrices of one input, and their width."""
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return {
        "qkv": ((query, key, key), shape.hidden),
        "out": ((shape.hidden,), query),
        "gate_up": ((shape.intermediate, shape.intermediate), shape.hidden),
        "down": ((shape.hidden,), shape.intermediate),
    }


def _measured(
    name: str, parts: tuple[tuple[int, ...], int], counts: Sequence[int], rate: int, device: torch.device,
    options: argparse.Namespace,
) -> list[dict[str, object]]:  # fmt: skip
    heights, width = parts
    products = Nf4Products(torch.bfloat16)
    group = [
        products.product([_quantized(rows_out, width, device) for rows_out in heights]) for _ in range(options.copies)
    ]
    if group[0].matrix is None:
        raise ConfigError(f"The {name} matrices of '{options.shape}' cannot lie side by side.")
    plain = [
        functools.partial(linear, weight=torch.randn(sum(heights), width, dtype=torch.bfloat16, device=device))
        for _ in group
    ]
    entries: list[dict[str, object]] = []
    with torch.inference_mode():
        for count in counts:
            rows = torch.randn(1, count, width, dtype=torch.bfloat16, device=device)
            expected = group[0].library(rows).float()
            kernel = _microseconds([one.kernel for one in group], rows)
            library = _microseconds([one.library for one in group], rows)
            bound = group[0].matrix.nbytes / rate * 1e6
            entry: dict[str, object] = {
                "matrix": name, "shape": group[0].matrix.shape, "rows": count, "kernel_us": kernel,
                "bitsandbytes_us": library, "bf16_us": _microseconds(plain, rows), "bound_us": round(bound, 2),
                "share_of_bound": round(bound / kernel, 3), "bitsandbytes_share": round(bound / library, 3),
                "error": float((group[0].kernel(rows).float() - expected).abs().max() / expected.abs().max()),
            }  # fmt: skip
            if options.sweep:
                entry["sweep"] = _sweep(group, rows)
            entries.append(entry)
    return entries


def _quantized(rows_out: int, width: int, device: torch.device) -> torch.nn.Module:
    plain = torch.nn.Linear(width, rows_out, bias=False, dtype=torch.bfloat16, device=device)
    module: torch.nn.Module = quantized_linear(plain, "nf4", device)
    return module


def _microseconds(ways: Sequence[choice.Product], rows: torch.Tensor) -> float:
    return round(min(choice._seconds(ways, rows) for _ in range(3)) / len(ways) * 1e6, 2)


def _sweep(group: Sequence[Nf4Product], rows: torch.Tensor) -> list[list[object]]:
    """[microseconds, tuning] of the four fastest divisions of the work."""
    from desk_rag.kv.nf4 import launcher

    timed: list[tuple[float, str]] = []
    for tuning in _tunings(rows.shape[1]):
        matrices = [one.matrix for one in group if one.matrix is not None]
        ways = [functools.partial(launcher.multiply, matrix=matrix, tuning=tuning) for matrix in matrices]
        try:
            timed.append((_microseconds(ways, rows), str(tuning).removeprefix("Nf4Tuning")))
        except Exception as error:  # too much shared memory raises a type of Triton's own
            timed.append((float("inf"), f"{tuning}: {type(error).__name__}"))
    return [list(one) for one in sorted(timed)[:4]]


def _tunings(count: int) -> list[Nf4Tuning]:
    from desk_rag.kv.nf4.launcher import Nf4Tuning

    few = [(64, 2, 4, 4), (64, 2, 4, 2), (64, 4, 4, 3), (32, 4, 4, 3), (128, 1, 4, 4), (64, 1, 4, 5)]
    many = [(128, 1, 8, 3), (128, 1, 4, 3), (64, 1, 4, 4), (128, 2, 8, 3), (64, 2, 4, 3), (256, 1, 8, 3)]
    sizes = few if count <= 32 else many
    tunings = [Nf4Tuning(*size, programs) for size, programs in itertools.product(sizes, (1, 2, 4, 8))]
    return [*tunings, *(Nf4Tuning(*sizes[0], programs, permute=False) for programs in (2, 4))]


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
