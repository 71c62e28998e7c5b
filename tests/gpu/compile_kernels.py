"""Compiles every kernel for real GPUs without having one: `python -m tests.gpu.compile_kernels`.

With COMPILE=usual only the most used variants, for one GPU; with COMPILE=first one of these for each kernel.

Triton's interpreter accepts much that its compiler does not; ptxas comes with the package, so types, layouts, registers
and shared memory can be checked anywhere. Prints one JSON line per kernel.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from desk_rag.kv.kernels import flash_decoding_kernel as split_kernel
from desk_rag.kv.kernels import flash_decoding_triton as split
from desk_rag.kv.kernels import fused_ops_triton, place_chunks
from desk_rag.kv.kernels.fused_inputs import WHOLE_HEADS, Pairing
from desk_rag.kv.lazy import decode_kernel, launcher, merge_kernel, prefill_kernel
from desk_rag.kv.nf4 import kernel as nf4_kernel
from desk_rag.kv.nf4 import launcher as nf4_launcher

_POINTERS = {
    "rows": "*i64", "words": "*i64", "firsts": "*i32", "codes": "*i8", "scales": "*fp16", "tables": "*fp32",
    "cosines": "*fp32", "sines": "*fp32", "outputs": "*fp32", "sums": "*fp32", "arrived": "*i32",
    "exponent": "fp32", "unscaled": "fp32", "shifts": "*fp32",
    "slots": "*i64", "eps": "fp32", "turns": "*fp16",
}  # fmt: skip
_IN_DTYPE = {
    "slabs", "query", "keys", "values", "result", "hidden", "delta", "weight", "total", "normed", "projected",
    "q_norm", "k_norm", "cos", "sin", "gate_up", "bias",
}  # fmt: skip
_NF4 = {
    "pairs": "*i32", "codes": "*u8", "scale_codes": "*u8", "scale_levels": "*fp32", "scale_steps": "*fp32",
    "scale_offsets": "*fp32", "levels": "*fp32", "partials": "*fp32",
}  # fmt: skip


def compiled(
    kernel: Any, constants: dict[str, Any], dtype: str, capability: int, warps: int, stages: int
) -> dict[str, Any]:
    """Compile one variant; raises what Triton raises."""
    names = [name for name in kernel.arg_names if name not in constants]
    signature = {name: f"*{dtype}" if name in _IN_DTYPE else _POINTERS.get(name, "i32") for name in names}
    if kernel is nf4_kernel.multiply:
        signature |= _NF4
    if constants.get("START_IN_MEMORY"):
        signature["length"] = "*i64"
    signature |= dict.fromkeys(constants, "constexpr")
    signature = {name: signature[name] for name in kernel.arg_names}
    never = {"length", "plain_shares", "table_rows", "shares", "count", "num_rows", "exponent", "unscaled"}
    never |= {"capacity", "eps", "blocks", "block"}
    divisible = [index for index, name in enumerate(kernel.arg_names) if name in names and name not in never]
    aligned = {(index,): [["tt.divisibility", 16]] for index in divisible}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    built = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": stages}
    )
    usage = _usage(built.asm["cubin"])
    ptx, turned = built.asm["ptx"], constants.get("TURNED", 0)
    return {
        "kernel": kernel.__name__, "dtype": dtype, "sm": capability, "warps": warps, **usage,
        "narrow_loads": len(re.findall(r"ld\.global[.\w:]*\.b8", ptx)), "shared": built.metadata.shared,
        "parts_turn": bool(turned and (constants["INTERLEAVED"] or turned < constants["DIM"])),
        "wide_loads": len(re.findall(r"ld\.global[.\w:]*\.v[24]\.b(?:32|64)", ptx)),
    }  # fmt: skip


def _usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        out = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=False).stdout
    usage = dict(re.findall(r"(REG|STACK):(\d+)", out))
    return {"registers": int(usage.get("REG", -1)), "stack": int(usage.get("STACK", -1))}


def _tuning(rows: int, dtype: str) -> launcher.LazyTuning:
    return launcher.LazyTuning.default(rows, fp32=dtype == "fp32")


def _lazy(dim: int, half: int, dtype: str, one: bool, rows: int) -> dict[str, Any]:
    """Constants as the launcher chooses them for 8,192 tokens, except that several tiles and words are looped over."""
    tuning = _tuning(rows, dtype)
    block = min(tuning.block, max(16, triton.next_power_of_2(rows)))
    merge_rows = min(block, triton.next_power_of_2(rows))
    own = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    few = rows <= 32
    return {
        **launcher._shape(dim, half), **launcher._types(torch.empty(0, dtype=own, device="meta"), tuning),
        "DEPENDENT": False, "FUSED": tuning.fused, "MERGE_ROWS": merge_rows,
        "MERGE_STEP": launcher._merge_step(merge_rows * triton.next_power_of_2(dim), tuning.warps),
        "LENGTH_IN_MEMORY": False, "PLAIN_TILES": 2, "ONE_RUN": few, "ONE_TILE": False,
        "ROTATE_QUERY": tuning.rotate_query, "ONE_GROUP": one, "FIELDS": launcher.FIELDS, "CODES_BY": 16,
        "SCALES_BY": 8, "BLOCK": block, "TILE": tuning.tile,
    }  # fmt: skip


def variants() -> list[tuple[Any, dict[str, Any], str, int, int]]:
    """(kernel, constants, dtype, warps, stages) of what the launchers would ask for."""
    cases: list[tuple[Any, dict[str, Any], str, int, int]] = []
    shapes = [(128, 64), (64, 32), (96, 48), (128, 48)]
    for (dim, half), dtype, one in itertools.product(shapes, ["bf16", "fp16", "fp32"], [True, False]):
        rest = dim - 2 * half
        padded = {
            "DIM": dim, "DIM_PADDED": triton.next_power_of_2(dim), "HALF": half,
            "HALF_PADDED": triton.next_power_of_2(half), "REST": rest,
            "REST_PADDED": triton.next_power_of_2(max(rest, 1)),
        }  # fmt: skip
        tuning = place_chunks.DEFAULT_TUNING
        cases.append((
            place_chunks._dequant_rope_scatter,
            padded | {"TILE": tuning.tile, "HEADS": 4, "ONE_GROUP": one, "NUM_FIELDS": place_chunks.NUM_FIELDS,
                      "CODES_BY": 8, "SCALES_BY": 8, "ANGLES_BY": 4, "SHIFTED": one},
            dtype, tuning.warps, 2,
        ))  # fmt: skip
        for rows in (7, 224):
            constants, own = _lazy(dim, half, dtype, one, rows), _tuning(rows, dtype)
            cases.append((prefill_kernel.attend_shares, constants, dtype, own.warps, launcher.stages_of(own, one)))
        if one:
            merge = {"DIM": dim, "COLUMNS": 32, "STEP": 128, "DEPENDENT": False}
            cases.append((merge_kernel.merge_shares, merge, dtype, 4, 2))
        if one and launcher.serves_few(7, dim, half) and dtype != "fp32":
            cases += [_few(dim, dtype, tile) for tile in (16, 32)] + [_few(dim, dtype, 16, one_tile=False)]
    return cases + _glue_variants() + _split_variants() + _nf4_variants()


def _few(dim: int, dtype: str, tile: int, *, one_tile: bool = True) -> tuple[Any, dict[str, Any], str, int, int]:
    """The decode step's own program where every run is one step, or as for long contexts."""
    constants = {
        "DEPENDENT": False, "LENGTH_IN_MEMORY": False, "PLAIN_TILES": 2, "PLAIN_TILE": 32, "ONE_RUN": one_tile,
        "AHEAD": not one_tile,
        "ONE_TILE": one_tile, "FIELDS": launcher.FIELDS, "CODES_BY": 16, "SCALES_BY": 8, "DIM": dim,
        "HALF": dim // 2, "ROWS": 8, "WARPS": 4, "TILE": tile, "BY_BYTES": True,
        "VALUE_TYPE": tl.bfloat16 if dtype == "bf16" else tl.float16,
    }  # fmt: skip
    return decode_kernel.attend_few, constants, dtype, 4, 2 if one_tile else 1


def _glue_variants() -> list[tuple[Any, dict[str, Any], str, int, int]]:
    """Kernels between the matrix products: the shapes of 0.5B, 7B and 32B models, and the widest row."""
    cases: list[tuple[Any, dict[str, Any], str, int, int]] = []
    for dtype, width, added in itertools.product(["bf16", "fp16", "fp32"], [896, 3584, 5120, 16384], [True, False]):
        block = triton.next_power_of_2(width)
        row = {"WIDTH": width, "BLOCK": block, "ADDED": added, "DELTA_SCALE": 0.22 if width == 5120 else 1.0}
        cases.append((fused_ops_triton._add_norm, row, dtype, fused_ops_triton.norm_warps(block), 3))
    shapes = [(14, 2, 64), (28, 4, 128), (32, 32, 96), (32, 32, 80), (8, 1, 256)]
    for dtype, (heads, kv_heads, dim), normed in itertools.product(["bf16", "fp16", "fp32"], shapes, [True, False]):
        others = [Pairing(dim // 2, interleaved=True), Pairing(dim * 3 // 8 * 2, query_scale=0.3)]
        for pairing in [WHOLE_HEADS, *([] if normed else others)]:
            constants = fused_ops_triton.rotation(heads, kv_heads, dim, normed, pairing)
            cases.append((fused_ops_triton._rotate_scatter, constants, dtype, fused_ops_triton.ROTATE_WARPS, 3))
    for dtype, inner, gelu in itertools.product(["bf16", "fp16", "fp32"], [4864, 18944], [False, True]):
        constants = {"INNER": inner, "BLOCK": fused_ops_triton.COLUMNS, "GELU": gelu}
        cases.append((fused_ops_triton._glu, constants, dtype, fused_ops_triton.GLU_WARPS, 3))
    return cases


def _split_variants() -> list[tuple[Any, dict[str, Any], str, int, int]]:
    """A question's attention as it is divided on a GPU with little shared memory, and for many rows on a large one."""
    cases: list[tuple[Any, dict[str, Any], str, int, int]] = []
    tunings = [split.tuning_for(rows, torch.device("cpu")) for rows in (16, 64)] + [split.SplitTuning()]
    shapes = [((7, 4, 128), 0), ((4, 2, 64), 0), ((1, 12, 96), 0), ((4, 8, 128), 4096)]
    variants = [(*shape, tuning) for shape in shapes for tuning in tunings]
    wide = [split.tuning_for(rows, torch.device("cpu"), 256) for rows in (16, 64)]
    variants += [((2, 4, 256), window, tuning) for window in (0, 1024) for tuning in wide]
    for dtype, (shape, window, tuning) in itertools.product(["bf16", "fp16"], variants):
        own = torch.bfloat16 if dtype == "bf16" else torch.float16
        for in_memory in (False, True):
            constants = split.share_constants(*shape, tuning, own, in_memory, window)
            cases.append((split_kernel.attend_share, constants, dtype, tuning.warps, tuning.stages))
        merge = (split_kernel.merge_rows, split.merge_constants(*shape, tuning), dtype, 1, 3)
        cases += [merge] if merge not in cases else []
    return cases


def _nf4_variants() -> list[tuple[Any, dict[str, Any], str, int, int]]:
    """Products of a decoded token and of a question, as they are divided on a GPU."""
    cases: list[tuple[Any, dict[str, Any], str, int, int]] = []
    for dtype, tokens, biased in itertools.product(["bf16", "fp16"], [16, 32, 64, 128], [False, True]):
        tuning = nf4_launcher.tuning_for(tokens, torch.device("cuda"))
        own = torch.bfloat16 if dtype == "bf16" else torch.float16
        constants = nf4_launcher.constants(tokens, own, biased, tuning)
        cases.append((nf4_kernel.multiply, constants, dtype, tuning.warps, tuning.stages))
    return cases


def main() -> None:
    """Compile all variants for an RTX 3060 (8.6) and an H200 (9.0)."""
    chosen = os.environ.get("COMPILE", "all")
    quick, begun = chosen != "all", set[Any]()
    for kernel, constants, dtype, warps, stages in variants():
        if quick and constants.get("BIASED"):
            continue
        if quick and (dtype != "bf16" or constants.get("DIM", 128) != 128 or constants.get("REST") == 32):
            continue
        if chosen == "first" and kernel in begun:
            continue
        begun.add(kernel)
        large = kernel is split_kernel.attend_share and constants["BLOCK"] > 64
        for capability in (90,) if large else (86,) if quick else (86, 90):
            print(json.dumps(compiled(kernel, constants, dtype, capability, warps, stages)), flush=True)


if __name__ == "__main__":
    main()
