"""Compiles every kernel for real GPUs without having one: `python -m tests.gpu.compile_kernels`.

With QUICK_COMPILE=1 only the most used variants, for one GPU.

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

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from desk_rag.kv import lazy_triton, rope_triton

_POINTERS = {
    "rows": "*i64", "words": "*i64", "codes": "*i8", "scales": "*fp16", "tables": "*fp32", "cosines": "*fp32",
    "sines": "*fp32", "outputs": "*fp32", "sums": "*fp32", "exponent": "fp32", "unscaled": "fp32",
}  # fmt: skip
_IN_DTYPE = {"slabs", "query", "keys", "values", "result"}


def compiled(kernel: Any, constants: dict[str, Any], dtype: str, capability: int, warps: int) -> dict[str, Any]:
    """Compile one variant; raises what Triton raises."""
    names = [name for name in kernel.arg_names if name not in constants]
    signature = {name: f"*{dtype}" if name in _IN_DTYPE else _POINTERS.get(name, "i32") for name in names}
    signature |= dict.fromkeys(constants, "constexpr")
    signature = {name: signature[name] for name in kernel.arg_names}
    divisible = [index for index, name in enumerate(kernel.arg_names) if name in names and signature[name] != "fp32"]
    aligned = {(index,): [["tt.divisibility", 16]] for index in divisible}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    built = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": 2}
    )
    usage = _usage(built.asm["cubin"])
    ptx = built.asm["ptx"]
    return {
        "kernel": kernel.__name__, "dtype": dtype, "sm": capability, "warps": warps, **usage,
        "narrow_loads": len(re.findall(r"ld\.global[.\w:]*\.b8", ptx)), "shared": built.metadata.shared,
    }  # fmt: skip


def _usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        out = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=False).stdout
    found = dict(re.findall(r"(REG|STACK):(\d+)", out))
    return {"registers": int(found.get("REG", -1)), "stack": int(found.get("STACK", -1))}


def variants() -> list[tuple[Any, dict[str, Any], str, int]]:
    """(kernel, constants, dtype, warps) of what the launchers would ask for."""
    found: list[tuple[Any, dict[str, Any], str, int]] = []
    shapes = [(128, 64), (64, 32), (96, 48), (128, 48)]
    for (dim, half), dtype, one in itertools.product(shapes, ["bf16", "fp16", "fp32"], [True, False]):
        rest = dim - 2 * half
        padded = {
            "DIM": dim, "DIM_PADDED": triton.next_power_of_2(dim), "HALF": half,
            "HALF_PADDED": triton.next_power_of_2(half), "REST": rest,
            "REST_PADDED": triton.next_power_of_2(max(rest, 1)),
        }  # fmt: skip
        tuning = rope_triton.DEFAULT_TUNING
        found.append((
            rope_triton._dequant_rope_scatter,
            padded | {"TILE": tuning.tile, "HEADS": 4, "ONE_GROUP": one, "NUM_FIELDS": rope_triton.NUM_FIELDS,
                      "CODES_BY": 8, "SCALES_BY": 8, "ANGLES_BY": 4},
            dtype, tuning.warps,
        ))  # fmt: skip
        padded |= {"HALF_PADDED": max(16, padded["HALF_PADDED"]), "REST_PADDED": max(16, padded["REST_PADDED"])}
        fp32 = dtype == "fp32"
        for few in (True, False):
            shape = padded | {
                "BLOCK": 16 if few else 64, "TILE": lazy_triton.DEFAULT_TUNING.tile,
                "KEY_TYPE": triton.language.float32 if fp32 else triton.language.float16,
                "VALUE_TYPE": {"bf16": triton.language.bfloat16, "fp16": triton.language.float16}.get(
                    dtype, triton.language.float32
                ),
                "PRECISION": "ieee" if fp32 else "tf32",
            }  # fmt: skip
            warps = 4 if few else 8
            extra = {"TURN_QUERY": few, "ONE_GROUP": one, "FIELDS": lazy_triton._FIELDS, "CODES_BY": 16, "SCALES_BY": 8}
            found.append((lazy_triton._chunk_shares, shape | extra, dtype, warps))
            if one:
                found.append((lazy_triton._plain_shares, shape | {"TILES": 4}, dtype, warps))
        if one:
            merge = {"DIM": dim, "DIM_PADDED": padded["DIM_PADDED"], "STEP": lazy_triton._MERGE}
            found.append((lazy_triton._merge, merge, dtype, 4))
    return found


def main() -> None:
    """Compile all variants for an RTX 3060 (8.6) and an H200 (9.0)."""
    quick = os.environ.get("QUICK_COMPILE") == "1"
    for kernel, constants, dtype, warps in variants():
        if quick and (dtype != "bf16" or constants["DIM"] != 128 or constants.get("REST") == 32):
            continue
        for capability in (86,) if quick else (86, 90):
            print(json.dumps(compiled(kernel, constants, dtype, capability, warps)), flush=True)


if __name__ == "__main__":
    main()
