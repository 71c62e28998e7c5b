"""Plots are well-formed SVG whose points lie where logarithmic axes put them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from desk_rag.bench.harness import plot
from desk_rag.bench.harness.plot import Line
from desk_rag.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"


def test_points_are_placed_by_their_logarithm(tmp_path: Path) -> None:
    path = tmp_path / "a" / "plot.svg"
    lines = [Line("ours & theirs", ((1_000.0, 10.0), (10_000.0, 100.0), (100_000.0, 1_000.0))), Line("empty", ())]
    plot.write(path, lines, title="<title>", x_name="tokens", y_name="ms")
    root = ElementTree.parse(path).getroot()
    dots = [(float(dot.get("cx") or 0), float(dot.get("cy") or 0)) for dot in root.iter(f"{SVG}circle")]
    assert len(dots) == 3
    assert dots[1][0] == pytest.approx((dots[0][0] + dots[2][0]) / 2, abs=0.2)
    assert dots[1][1] == pytest.approx((dots[0][1] + dots[2][1]) / 2, abs=0.2)
    assert dots[0][1] > dots[2][1], "more is higher up"
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"<title>", "ours & theirs", "10,000", "100"} <= texts and "empty" not in texts


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SVG"):
        plot.write(tmp_path / "plot.png", [Line("a", ((1.0, 1.0),))], title="", x_name="", y_name="")
    for lines in ([], [Line("a", ((1.0, 0.0),))]):
        with pytest.raises(ValueError, match="positive"):
            plot.write(tmp_path / "plot.svg", lines, title="", x_name="", y_name="")
