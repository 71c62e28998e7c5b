"""Light markup: headings, lists, tables, code and lines are kept, marks are lost."""

from __future__ import annotations

import json

from desk_rag.documents.document import Block, BlockKind
from desk_rag.documents.parsers.latex import document as latex
from desk_rag.documents.parsers.markup import asciidoc, markdown, outline, textile
from desk_rag.documents.parsers.records import canvas

_ASCIIDOC = """\
= The allotment
:toc: left

// not shown
== Watering

The barrel holds *310 litres* and was bought at
link:https://example.org[the harbour shop] in _May_.

* Tomatoes need water daily.
** Beans every second day.

[cols="1,1", options="header"]
|===
|Item |Price

|Hose |12 crowns
|Barrel
|80 crowns
|===

[source,sh]
----
make water
----
"""
_TEXTILE = """\
h1. The allotment

The barrel holds *310 litres*, from "the harbour shop":https://example.org.

# Tomatoes need water daily.
# Beans every second day.

|_. Item |_. Month |_. Price |
| Hose | May | 12 crowns |

bc. make water

h2(#winter). Winter

The tap_valve is closed.
"""
_ORG = """\
* Ida Lund
  :PROPERTIES:
  :PHONE: 555-0142
  :ID: 7f3a
  :END:
  :LOGBOOK:
  CLOCK: [2026-06-15 Mon 10:00]
  :END:
  Knows the weir.
"""


def shown(blocks: tuple[Block, ...]) -> list[tuple[BlockKind, str, int | None]]:
    return [(block.kind, block.text, block.line_start) for block in blocks]


def test_asciidoc() -> None:
    parsed = asciidoc.parse(_ASCIIDOC)
    assert parsed.title == "The allotment"
    assert shown(parsed.blocks) == [
        (BlockKind.HEADING, "The allotment", 1),
        (BlockKind.HEADING, "Watering", 5),
        (BlockKind.PARAGRAPH, "The barrel holds 310 litres and was bought at\nthe harbour shop in May.", 7),
        (BlockKind.LIST, "- Tomatoes need water daily.", 10),
        (BlockKind.LIST, "- Beans every second day.", 11),
        (BlockKind.TABLE, "Item: Hose; Price: 12 crowns", 17),
        (BlockKind.TABLE, "Item: Barrel; Price: 80 crowns", 18),
        (BlockKind.CODE, "make water", 24),
    ]


def test_textile() -> None:
    parsed = textile.parse(_TEXTILE)
    assert shown(parsed.blocks) == [
        (BlockKind.HEADING, "The allotment", 1),
        (BlockKind.PARAGRAPH, "The barrel holds 310 litres, from the harbour shop.", 3),
        (BlockKind.LIST, "- Tomatoes need water daily.", 5),
        (BlockKind.LIST, "- Beans every second day.", 6),
        (BlockKind.TABLE, "Item: Hose; Month: May; Price: 12 crowns", 9),
        (BlockKind.CODE, "make water", 11),
        (BlockKind.HEADING, "Winter", 13),
        (BlockKind.PARAGRAPH, "The tap_valve is closed.", 15),
    ]
    assert parsed.blocks[-1].heading == ("The allotment", "Winter")


def test_properties_of_an_org_headline_are_a_row_and_its_log_is_left_out() -> None:
    assert [block.text for block in outline.parse(_ORG).blocks] == ["Ida Lund", "Phone: 555-0142", "Knows the weir."]


def test_a_markdown_footnote_of_one_word_is_no_link_target() -> None:
    source = "The pier was built in 1902.[^1]\n\n[^1]: https://pier.example\n\n[other]: https://other.example\n"
    blocks = markdown.parse(source).blocks
    assert [block.text for block in blocks] == ["The pier was built in 1902.[^1]", "[^1]: https://pier.example"]


def test_text_on_the_line_that_begins_a_latex_document_is_read() -> None:
    source = "\\documentclass{article}\\begin{document}The pier is long.\n\\end{document}\n"
    (block,) = latex.parse(source).blocks
    assert (block.text, block.line_start) == ("The pier is long.", 1)


def test_the_words_on_the_arrows_of_a_canvas_are_read() -> None:
    cards = [{"id": name, "type": "text", "text": f"Card {name}", "x": 0, "y": 0} for name in "ab"]
    arrows = [{"id": "c", "fromNode": "a", "toNode": "b", "label": "pays for"}, {"id": "d"}]
    blocks = canvas.parse(json.dumps({"nodes": cards, "edges": arrows})).blocks
    assert [block.text for block in blocks] == ["Card a", "Card b", "pays for"]
