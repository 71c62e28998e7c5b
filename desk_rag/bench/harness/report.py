"""Report a measurement: machine, versions, quantiles, a table, one JSON line."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from desk_rag import __version__


@dataclass(frozen=True, slots=True)
class Spread:
    """Five numbers of a sample."""

    least: float
    lower: float
    """25th percentile."""
    median: float
    upper: float
    """75th percentile."""
    most: float
    count: int

    @classmethod
    def of(cls, sample: Sequence[float]) -> Spread:
        """Summarise at least one number; percentiles are interpolated (inclusive method)."""
        ordered = sorted(sample)
        assert ordered, "a spread of nothing"
        quartiles = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
        lower, median, upper = quartiles
        return cls(ordered[0], lower, median, upper, ordered[-1], len(ordered))

    def scaled(self, factor: float, digits: int = 1) -> list[float]:
        """[min, p25, p50, p75, max], multiplied and rounded, for JSON."""
        five = (self.least, self.lower, self.median, self.upper, self.most)
        return [round(number * factor, digits) for number in five]


def environment(*, threads: int | None = None) -> dict[str, object]:
    """Describe the measurement's environment: time, commit, machine, versions, threads."""
    import torch
    import transformers

    return {
        "at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "desk_rag": __version__,
        "commit": commit(),
        "machine": machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": threads if threads is not None else torch.get_num_threads(),
    }


def machine() -> str:
    """'2-core x86-64 CPU', and the GPU's name where torch sees one."""
    import psutil
    import torch

    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    text = f"{cores}-core {platform.machine().replace('_', '-')} CPU"
    return f"{text}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else text


def commit() -> str | None:
    """The short commit of the source tree, with '+' when files differ from it; None outside a repository."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short", "HEAD")
        return f"{head}+" if _git(root, "status", "--porcelain") else head
    except (OSError, subprocess.SubprocessError):
        return None


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, markdown: bool = False) -> str:
    """Columns lined up, the first to the left and the others to the right."""
    lines = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    edge = "| " if markdown else ""
    middle, end = (" | ", " |") if markdown else ("  ", "")

    def shown(line: Sequence[str]) -> str:
        cells = [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
        return f"{edge}{middle.join(cells)}{end}".rstrip()

    rule = ["-" * width for width in widths]
    if markdown:
        rule = [rule[0], *(f"{dashes[:-1]}:" for dashes in rule[1:])]
    return "\n".join([shown(lines[0]), shown(rule), *(shown(line) for line in lines[1:])])


def finish(result: Mapping[str, object], out: Path | None) -> None:
    """Print the result as one JSON line, the last of the output; append it to `out` if there is one."""
    line = json.dumps(result, sort_keys=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    print(line, flush=True)


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
