"""Lines over logarithmic axes as an SVG file, written by hand, so that a plot needs no plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from desk_rag.errors import ConfigError

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 270, 40, 50
_COLORS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8e5ea2", "#e08e0b", "#3c3c3c", "#00818a", "#a0522d", "#7a8b00", "#c71585")


@dataclass(frozen=True, slots=True)
class Line:
    """One named series of positive points."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Positive numbers onto pixels, by their logarithm."""

    least: float
    most: float
    start: float
    end: float

    def at(self, value: float) -> float:
        span = math.log(self.most / self.least) or 1.0
        return self.start + (self.end - self.start) * math.log(value / self.least) / span


def check(path: Path) -> None:
    """Raises ConfigError unless `path` names a format that can be written; asked before anything is measured."""
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"'{path}' cannot be written: plots are SVG.", remedy=f"--plot {path.with_suffix('.svg')}")


def write(path: Path, lines: Sequence[Line], *, title: str, x_name: str, y_name: str) -> None:
    """Draw the lines. Raises ConfigError as `check` does; ValueError for no points or a number that is not positive."""
    check(path)
    shown = [line for line in lines if line.points]
    if not shown or any(min(point) <= 0 for line in shown for point in line.points):
        raise ValueError("logarithmic axes need points, all of them positive")
    xs = sorted({x for line in shown for x, _ in line.points})
    ys = [y for line in shown for _, y in line.points]
    across = _Axis(xs[0], xs[-1], _LEFT, _WIDTH - _RIGHT)
    up = _Axis(_down(min(ys)), _up(max(ys)), _HEIGHT - _BOTTOM, _TOP)
    parts = [_text(_LEFT, 22, title, size=15), _text(_LEFT, _HEIGHT - 10, f"{x_name} →"), _text(8, _TOP - 4, y_name)]
    parts += [_x_tick(across.at(x), x) for x in xs]
    parts += [_y_tick(up.at(y), y) for y in _ticks(up.least, up.most)]
    for number, line in enumerate(shown):
        parts += _drawn(line, _COLORS[number % len(_COLORS)], across, up, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    body = "\n".join(parts)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n',
        encoding="utf-8",
    )


def _drawn(line: Line, color: str, across: _Axis, up: _Axis, number: int) -> list[str]:
    placed = [(across.at(x), up.at(y)) for x, y in sorted(line.points)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in placed]
    key = _TOP + 18 * number
    legend = f'<rect x="{_WIDTH - _RIGHT + 16}" y="{key}" width="14" height="4" fill="{color}"/>'
    stroke = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
    return [stroke, *dots, legend, _text(_WIDTH - _RIGHT + 36, key + 7, line.name)]


def _x_tick(x: float, value: float) -> str:
    foot = _HEIGHT - _BOTTOM
    tick = f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{foot}" stroke="#ddd"/>'
    return tick + _text(x, foot + 16, f"{value:,.0f}", anchor="middle")


def _y_tick(y: float, value: float) -> str:
    tick = f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
    return tick + _text(_LEFT - 6, y + 4, f"{value:,g}", anchor="end")


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'


def _ticks(least: float, most: float) -> list[float]:
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    return [y for y in (step * 10.0**power for power in powers for step in (1, 2, 5)) if least <= y <= most * 1.0001]


def _down(value: float) -> float:
    return float(10.0 ** math.floor(math.log10(value)))


def _up(value: float) -> float:
    return float(10.0 ** math.ceil(math.log10(value))) if value > _down(value) else value * 10
