"""An answer is cut into the same units wherever the pieces of the stream end."""

from __future__ import annotations

import pytest

from desk_rag.answering.writing.units import Unit, UnitKind, UnitSplitter

TEXTS = {
    "prose": ("The fee is 12.50 crowns. [2] It is due on 31 March [1]. Ask Mr. Pell!", [
        "The fee is 12.50 crowns. [2]", "It is due on 31 March [1].", "Ask Mr. Pell!"]),
    "German dates": ("Der Umzug ist am 3. Oktober um 9 Uhr. Das kostet z. B. 20 Euro [1]. Ende.", [
        "Der Umzug ist am 3. Oktober um 9 Uhr.", "Das kostet z. B. 20 Euro [1].", "Ende."]),
    "list": ("Costs:\n- **Fan**: 187 crowns [1]\n- Seal: free. It is old.\n1. First step\n2. Second step", [
        "Costs:", "- **Fan**: 187 crowns [1]", "- Seal: free.", "It is old.", "1. First step", "2. Second step"]),
    "table": ("| Part | Price |\n|---|---|\n| Fan | 187. New |\n\nDone.", [
        "| Part | Price |", "|---|---|", "| Fan | 187. New |", "Done."]),
    "code": ("Run this:\n```sh\nls -l. Now\n| x |\n```\nIt lists files.", [
        "Run this:", "```sh", "ls -l. Now", "| x |", "```", "It lists files."]),
    "heading": ("## 1. Costs. And more\nText.", ["## 1. Costs. And more", "Text."]),
    "citations": ("One [1][2]. Two.[3] Three (see 4). Four 【2†source】. Five", [
        "One [1][2].", "Two.[3]", "Three (see 4).", "Four 【2†source】.", "Five"]),
    "quotes": ('He said "No." Then he left. “Really?” she asked.', [
        'He said "No."', "Then he left.", "“Really?” she asked."]),
    "Chinese": ("费用是200克朗。船是免费的。", ["费用是200克朗。", "船是免费的。"]),
}  # fmt: skip


def cut(text: str, size: int) -> list[Unit]:
    splitter = UnitSplitter()
    units = [unit for start in range(0, len(text), size) for unit in splitter.feed(text[start : start + size])]
    return [*units, *splitter.finish()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("name", TEXTS)
def test_units_do_not_depend_on_the_pieces(name: str, size: int) -> None:
    text, expected = TEXTS[name]
    units = cut(text, size)
    assert [unit.text for unit in units] == expected
    assert "".join(unit.before + unit.text for unit in units) == text


def test_kinds() -> None:
    units = cut("# A\n| a | b |\n|---|---|\n| 1 | 2 |\nIt is so. Is it?\n---\n| c | d |\n| 3 | 4 |\n", 3)
    kinds = [(unit.text, unit.kind) for unit in units]
    assert kinds == [
        ("# A", UnitKind.OTHER),
        ("| a | b |", UnitKind.HEADER),
        ("|---|---|", UnitKind.ROW),
        ("| 1 | 2 |", UnitKind.ROW),
        ("It is so.", UnitKind.SENTENCE),
        ("Is it?", UnitKind.OTHER),
        ("---", UnitKind.OTHER),
        ("| c | d |", UnitKind.ROW),
        ("| 3 | 4 |", UnitKind.ROW),
    ]


def test_a_stream_without_an_end_is_cut() -> None:
    splitter = UnitSplitter()
    units = [unit for _ in range(1000) for unit in splitter.feed("word ")]
    assert len(units) == 2
    assert len(splitter.pending) <= 2_000
