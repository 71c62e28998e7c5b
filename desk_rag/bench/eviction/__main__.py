"""Compare eviction policies on made-up traces: `python -m desk_rag.bench.eviction`. Knows policies; touches no store.

Traces are of chunk retrievals. *zipf*: some chunks are asked about far more often than others. *zipf+scan*: a pass over
every chunk breaks into it now and then. *drift*: what is popular changes. *two models*: half of the chunks are of a
larger model, three times the bytes and six times the prefill time. Saved seconds are prefill time that hits made
unnecessary, as a share of all of it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from desk_rag.bench.eviction.policies import GDSF, LFU, LRU, S3FIFO, Policy, Worth
from desk_rag.store.kv.policy import Cost

POLICIES: tuple[Callable[[int], Policy], ...] = (LRU, LFU, S3FIFO, GDSF, Worth)
_SECONDS_PER_BYTE = 2e-6
Trace = list[int]


def zipf(rng: random.Random, chunks: int, length: int, exponent: float = 0.9) -> Trace:
    """Return accesses whose frequency falls with a power of a random rank."""
    order = rng.sample(range(chunks), chunks)
    weights = list(accumulate(1 / (rank + 1) ** exponent for rank in range(chunks)))
    return rng.choices(order, cum_weights=weights, k=length)


def with_scans(rng: random.Random, chunks: int, length: int) -> Trace:
    """Return a zipf trace with four passes over all chunks."""
    trace = zipf(rng, chunks, length)
    for place in range(4):
        start = (2 * place + 1) * length // 8 + place * chunks
        trace[start:start] = range(chunks)
    return trace


def drifting(rng: random.Random, chunks: int, length: int) -> Trace:
    """Return four zipf traces with different favourites, one after the other."""
    return [key for _ in range(4) for key in zipf(rng, chunks, length // 4)]


def costs(rng: random.Random, chunks: int, *, two_models: bool) -> list[Cost]:
    """Return what each chunk takes and saves: 150 to 500 KiB, as chunks differ in length."""
    traces = []
    for key in range(chunks):
        large = two_models and key % 2 == 1
        size = int(rng.uniform(150, 500) * 1024 * (3 if large else 1))
        traces.append(Cost(size, size * _SECONDS_PER_BYTE * (2 if large else 1)))
    return traces


def replay(policy: Policy, trace: Trace, cost: list[Cost]) -> tuple[float, float]:
    """Return (hit ratio, saved share of all prefill seconds)."""
    hits = 0
    saved = total = 0.0
    for key in trace:
        total += cost[key].seconds
        if policy.access(key, cost[key]):
            hits += 1
            saved += cost[key].seconds
    return hits / len(trace), saved / total


def run(chunks: int, length: int, shares: tuple[float, ...], seed: int) -> Iterator[dict[str, object]]:
    """Yield one result per trace, cache size and policy."""
    rng = random.Random(seed)
    single, double = costs(rng, chunks, two_models=False), costs(rng, chunks, two_models=True)
    traces = [
        ("zipf", zipf(rng, chunks, length), single),
        ("zipf+scan", with_scans(rng, chunks, length), single),
        ("drift", drifting(rng, chunks, length), single),
        ("two models", zipf(rng, chunks, length), double),
    ]
    for name, trace, cost in traces:
        for share in shares:
            capacity = int(share * sum(item.size for item in cost))
            for make in POLICIES:
                policy = make(capacity)
                hit_ratio, saved = replay(policy, trace, cost)
                yield {
                    "trace": name,
                    "cache": share,
                    "policy": policy.name,
                    "hit_ratio": round(hit_ratio, 4),
                    "saved_share": round(saved, 4),
                    "saved_seconds": round(saved * sum(cost[key].seconds for key in trace), 1),
                }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--chunks", type=int, default=4000)
    parser.add_argument("--accesses", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(argv)
    results = []
    print(f"{'trace':<11} {'cache':>5}  {'policy':<8} {'hits':>6} {'saved':>6} {'seconds':>9}")
    for result in run(arguments.chunks, arguments.accesses, (0.05, 0.2, 0.5), arguments.seed):
        results.append(result)
        print(
            f"{result['trace']:<11} {result['cache']:>5.0%}  {result['policy']:<8}"
            f" {result['hit_ratio']:>6.1%} {result['saved_share']:>6.1%} {result['saved_seconds']:>9.0f}"
        )
    print(json.dumps({"bench": "eviction", **vars(arguments), "results": results}, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
