"""First tokens, whole answers and joules for models of published shapes: one command, one model in memory at a time.

Weights and chunks are random: latency and energy do not depend
on the values, and nothing here says anything about quality. Every part's JSON file is written anew as soon as one more
number is known, so that a run that is cut short keeps what it measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from desk_rag.bench import load
from desk_rag.bench.gpu_paths import first_token, whole_answer
from desk_rag.bench.gpu_paths.first_token import Case, Desk, Plans
from desk_rag.bench.gpu_paths.whole_answer import Job
from desk_rag.bench.harness import energy, report
from desk_rag.bench.models import shapes
from desk_rag.bench.models.chunk_pool import ChunkPool
from desk_rag.bench.models.synthetic import lengths
from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.kv.loading.loader import LoaderSettings
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.rope import build_tables
from desk_rag.model.language_model import LanguageModel

_PARTS = ("ttft", "e2e", "energy")
_HABITS = ("threads", "waves", "ram_waves", "large_waves")
"""Settings of the loader that a result names."""
_TTFT_SHARE = 0.55
"""Share of the time for first tokens, when whole answers are measured too."""
_log = logging.getLogger("desk_rag.bench")


@dataclass(slots=True)
class Run:
    """Results so far and the file that keeps them."""

    out: Path
    common: dict[str, object]
    began: float
    seconds: float
    measured: dict[str, dict[str, object]]

    def left(self, share: float = 1.0) -> float:
        """Seconds until that share of the budget is spent."""
        return self.seconds * share - (time.perf_counter() - self.began)

    def keep(self, part: str, content: dict[str, object]) -> None:
        """Write the part's file, complete or not there."""
        self.measured[part] = content
        self.out.mkdir(parents=True, exist_ok=True)
        fresh = self.out / f"{part}.json.new"
        fresh.write_text(json.dumps(self.common | content, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.out / f"{part}.json")


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    parts = _parts(options)
    jobs, cases = _jobs(options, parts), _cases(options)
    common: dict[str, object] = {
        "bench": "contexts", **report.environment(), "values": "random", "spread": "min, p25, p50, p75, max",
    }  # fmt: skip
    run = Run(options.out, common, time.perf_counter(), options.seconds, {})
    with _logged(options.out), load._place(options.dir) as place:
        wanted = list(dict.fromkeys([*([options.shape] if "ttft" in parts else []), *jobs]))
        for name in wanted:
            try:
                _one_model(run, name, options, cases if name == options.shape and "ttft" in parts else [], jobs, place)
            except (DeskRagError, RuntimeError) as error:
                if not run.measured:
                    raise
                # What was measured before is worth its table and its line.
                _log.exception("%s", name)
                common["failed"] = f"{name}: {error}"
            _free()
    _print(run)
    report.finish(common | run.measured, options.results)
    return 1 if "failed" in common else 0


def _one_model(
    run: Run, name: str, options: argparse.Namespace, cases: Sequence[Case], jobs: dict[str, list[Job]], place: Path
) -> None:
    """Everything that is wanted of one model, which is given up again at the end."""
    model = shapes.build(name, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    prefix = shapes.random_prefix(model, options.prefix)
    pool = ChunkPool(place / name, shapes.model_shape(name).chunk_shape)
    _log.info("%s: %.1f billion parameters, after %.0f s", name, model.spec.num_parameters / 1e9, _spent(run))
    if cases:
        _ttft(run, model, prefix, pool, options, cases, place, share=_TTFT_SHARE if jobs else 1.0)
    if name in jobs:
        waiting = len(jobs) - list(jobs).index(name)
        _whole_answers(run, model, prefix, pool, options, jobs[name], run.left() / waiting)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench contexts", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="directory for ttft.json, e2e.json and log.txt")
    parser.add_argument("--seconds", type=float, default=240.0, help="about what all of it may take")
    parser.add_argument("--parts", default=",".join(_PARTS), help="of ttft, e2e, energy (energy is weighed in e2e)")
    parser.add_argument("--shape", default="qwen2-7b", help=f"for ttft; one of {', '.join(shapes.MODELS)}")
    parser.add_argument("--contexts", default="8192+128,16349+128,750+32,2048+128,32768+128", help="chunks+question")
    parser.add_argument("--questions", default="1,2,4,8", help="asked at once")
    parser.add_argument(
        "--jobs", nargs="+", default=["qwen2-7b=8192+128+20:1", "qwen2.5-32b=2048+20+20:1,8"],
        help="for e2e: SHAPE=context+question+answer:batch sizes",
    )  # fmt: skip
    parser.add_argument("--chunk", type=int, default=512, help="tokens per chunk")
    parser.add_argument("--prefix", type=int, default=64, help="tokens of the shared prefix")
    parser.add_argument("--threads", type=int, help="reader threads; without both, as answers measure the drive")
    parser.add_argument("--waves", type=int, help="steps of a load")
    parser.add_argument("--large-waves", type=int, help="steps of a large load from RAM")
    parser.add_argument("--big-mib", type=int, default=512, help="size of the file for the drive's own rate")
    parser.add_argument("--most-mib", type=int, default=2200, help="leave out cases with more bytes of chunk files")
    parser.add_argument("--meter-seconds", type=float, default=2.0, help="how long each energy is weighed")
    parser.add_argument("--no-graphs", action="store_true", help="launch the question pass kernel by kernel")
    parser.add_argument("--no-baselines", action="store_true", help="without the published loaders")
    parser.add_argument("--dir", type=Path, help="where the files go; beside the user's caches by default")
    parser.add_argument("--results", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _parts(options: argparse.Namespace) -> set[str]:
    parts = set(options.parts.split(","))
    if parts - set(_PARTS):
        raise ConfigError(f"There is no part '{sorted(parts - set(_PARTS))[0]}'.", remedy=f"Of {', '.join(_PARTS)}.")
    return parts


def _jobs(options: argparse.Namespace, parts: set[str]) -> dict[str, list[Job]]:
    if not parts & {"e2e", "energy"}:
        return {}
    jobs: dict[str, list[Job]] = {}
    for text in options.jobs:
        name, _, counts = text.partition("=")
        shapes.model_shape(name)
        jobs.setdefault(name, []).extend(Job.parse(counts))
    return jobs


def _cases(options: argparse.Namespace) -> list[Case]:
    """One question at every context first, then several at once."""
    numbers = [int(number) for number in options.questions.split(",")]
    return [Case.parse(text, number) for number in numbers for text in options.contexts.split(",")]


def _ttft(
    run: Run, model: LanguageModel, prefix: PrefixKV, pool: ChunkPool, options: argparse.Namespace,
    cases: Sequence[Case], place: Path, share: float,
) -> None:  # fmt: skip
    sizes = [case.questions * pool.payload(lengths(case.context, options.chunk)) for case in cases]
    most = options.most_mib << 20
    room = max((size for size in sizes if size <= most), default=0) * 9 // 8 + (64 << 20)
    settings = replace(_loader_settings(options), staging_bytes=room, resident_bytes=room)
    plans = Plans(
        options.shape, tuple(cases), options.chunk, place, settings, graphs=not options.no_graphs,
        big_bytes=options.big_mib << 20, most_bytes=most, baselines=not options.no_baselines,
    )  # fmt: skip
    entries: list[dict[str, object]] = []
    with Desk(plans, model, prefix, pool) as desk:
        _log.info("ttft: files written after %.0f s", _spent(run))

        def keep() -> None:
            left_out = [str(case) for case in desk.left_out]
            habits = {name: getattr(settings, name) for name in _HABITS}
            run.keep("ttft", {"cases": entries, "left_out": left_out, "loader": habits})

        for entry in first_token.measure(desk, lambda left: run.left(share) / left):
            entries.append(entry)
            keep()
        keep()


def _loader_settings(options: argparse.Namespace) -> LoaderSettings:
    """Threads and waves as given, else the loader's own."""
    usual = LoaderSettings()
    return replace(
        usual, threads=options.threads or usual.threads, waves=options.waves or usual.waves,
        large_waves=options.large_waves or usual.large_waves,
    )  # fmt: skip


def _whole_answers(
    run: Run, model: LanguageModel, prefix: PrefixKV, pool: ChunkPool, options: argparse.Namespace,
    jobs: Sequence[Job], seconds: float,
) -> None:  # fmt: skip
    tokens = max(job.context + job.question + job.answer for job in jobs)
    tables = build_tables(model, prefix.num_tokens + tokens + 256)
    meter = energy.meter_of(model.device) if "energy" in _parts(options) else None
    weighing = 3 * options.meter_seconds * len(jobs) if meter is not None else 0.0
    before = run.measured.get("e2e", {}).get("jobs", [])
    assert isinstance(before, list)
    entries: list[dict[str, object]] = list(before)
    for entry in whole_answer.measure(
        model, prefix, tables, pool, jobs, chunk=options.chunk, graphs=not options.no_graphs,
        threads=options.threads or LoaderSettings().threads, seconds=max(0.0, seconds - weighing), meter=meter,
        meter_seconds=options.meter_seconds,
    ):  # fmt: skip
        entries.append(entry)
        run.keep("e2e", {"jobs": entries})


def _spent(run: Run) -> float:
    return time.perf_counter() - run.began


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def _logged(out: Path) -> Iterator[None]:
    """The benchmarks' log goes to a file there and to the terminal's error stream."""
    out.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [logging.FileHandler(out / "log.txt", encoding="utf-8"), logging.StreamHandler()]
    before = _log.level
    _log.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        _log.addHandler(handler)
    try:
        yield
    finally:
        _log.setLevel(before)
        for handler in handlers:
            _log.removeHandler(handler)
            handler.close()


# Showing --------------------------------------------------------------------------------------------------------------


def _print(run: Run) -> None:
    for part, key in (("ttft", "cases"), ("e2e", "jobs")):
        content = run.measured.get(part)
        if content is None:
            continue
        print(f"\n{part}: medians in milliseconds, and how many times faster than full prefill")
        rows = [row for entry in _listed(content, key) for row in _rows(entry)]
        print(report.table(["case", "mode", "median", "p25", "p75", "ratio", "of bound", "n"], rows))


def _rows(entry: dict[str, object]) -> list[list[str]]:
    modes, ratios, of_bound = entry["modes"], entry["ratio_to_full_prefill"], entry.get("of_bound", {})
    assert isinstance(modes, dict) and isinstance(ratios, dict) and isinstance(of_bound, dict)
    counts = "+".join(str(entry[name]) for name in ("context", "question", "answer") if name in entry)
    case = f"{entry['shape']} {counts} x{entry.get('questions', entry.get('batch'))}"
    rows = []
    for name, times in modes.items():
        _, lower, median, upper, _ = times["wall_ms"]
        ratio = f"{ratios[name][2]:.1f}x" if name in ratios else ""
        share = f"{of_bound[name]:.2f}" if name in of_bound else ""
        rows.append([case, name, f"{median:.2f}", f"{lower:.2f}", f"{upper:.2f}", ratio, share, str(times["n"])])
    return rows


def _listed(content: dict[str, object], key: str) -> list[dict[str, object]]:
    part = content[key]
    assert isinstance(part, list)
    return part


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
