"""Data and settings are read as lines that carry their keys, with the line of the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from desk_rag.config import IndexSettings
from desk_rag.documents.document import BlockKind, Document, parse

_SETTINGS = IndexSettings(parser_seconds=20)
Read = Callable[[str, str], Document]
_COMPOSE = """\
# Services of the house
services:
  db:
    image: postgres:16   # pinned
    environment:
      - TZ=Europe/Oslo
  web:
    command: |
      make all
      ./run --port 80
plots:
  - number: 27
    tenant: Ida
  - number: 28
    tenant: Tom
defaults: &defaults {retries: 3}
mail: *defaults
"""
_CATALOG = """\
<?xml version="1.0" encoding="iso-8859-1"?>
<catalog xmlns="urn:x">
  <book id="b1"><author>Lund</author><title>Mills</title></book>
  <book id="b2">
    <author>Berg</author><title>Weirs</title></book>
  <note>Read <b>this</b> first.</note>
</catalog>
"""
_INI = """\
; The printer in the hall
[printer]
name = hall
; changed by Tom
paper: A4
[network]
address = 10.0.0.7
"""


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Parse text under a name."""

    def parse_text(name: str, text: str) -> Document:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return parse(tmp_path / name, _SETTINGS)

    return parse_text


def lines(document: Document) -> dict[str, tuple[int | None, int | None]]:
    return {block.text: (block.line_start, block.line_end) for block in document.blocks}


def test_json_values_carry_their_keys_and_records_become_rows(read: Read) -> None:
    data = {
        "server": {"host": "db.example.org", "ports": [5432, 5433]},
        "members": [{"name": "Ida", "address": {"city": "Ribe"}}, {"name": "Tom", "tags": ["x", "y"]}],
    }
    document = read("house.json", json.dumps(data, indent=1))
    assert lines(document) == {
        "server.host: db.example.org": (3, 3),
        "server.ports: 5432, 5433": (5, 6),
        "members: name: Ida; address.city: Ribe": (10, 15),
        "members: name: Tom; tags: x, y": (16, 22),
    }
    assert document.parser.startswith("json/")


def test_json_lines_and_a_file_cut_off_in_the_middle(read: Read) -> None:
    rows = lines(read("log.jsonl", '{"day": 1, "what": "rain"}\n{"day": 2, "what": "sun"}\n{"day": 3, "what'))
    assert rows["day: 1; what: rain"] == (1, 1) and rows["day: 2; what: sun"] == (2, 2)


def test_long_texts_in_data_are_paragraphs_below_their_keys(read: Read) -> None:
    story = "The ferry at Ribe was taken out of service. " * 20
    document = read("story.json", json.dumps({"chapter": {"body": story, "picture": "iVBOR" * 2000}}))
    (text,) = (block for block in document.blocks if block.kind is BlockKind.PARAGRAPH)
    assert text.text == story.strip() and text.heading == ("chapter", "chapter.body")
    assert all(len(block.text) < 1000 for block in document.blocks)


def test_yaml_keeps_comments_scripts_and_lines(read: Read) -> None:
    document = read("compose.yaml", _COMPOSE)
    assert document.title == "Services of the house"
    rows = lines(document)
    assert rows["services.db.image: postgres:16 # pinned"] == (4, 4)
    assert rows["services.db.environment: TZ=Europe/Oslo"] == (6, 6)
    assert rows["make all\n./run --port 80"] == (9, 10)
    assert rows["plots: number: 28; tenant: Tom"] == (14, 15)
    assert "mail.retries: 3" in rows


def test_a_template_and_a_bomb_are_read_as_they_stand(read: Read) -> None:
    template = "host: {{ host }}\n{% if x %}\nport: 1\n{% endif %}\n"
    assert "{% if x %}" in "\n".join(block.text for block in read("site.yml", template).blocks)
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9))
    assert len(read("bomb.yml", bomb).blocks) == 1


def test_toml_and_ini_lines_carry_their_section(read: Read) -> None:
    rows = lines(read("printer.ini", _INI))
    assert rows["printer.paper: A4"] == (5, 5) and rows["; changed by Tom"] == (4, 4)
    rows = lines(read("tool.toml", '[tool.lint]\nrules = [\n  "a",\n  "b",\n]\nname = "x"\n'))
    assert rows['tool.lint.rules: [ "a", "b", ]'] == (2, 5) and rows["tool.lint.name: x"] == (6, 6)


def test_xml_elements_that_repeat_are_rows_and_mixed_content_is_text(read: Read) -> None:
    rows = lines(read("books.xml", _CATALOG))
    assert rows["catalog.book: id: b1; author: Lund; title: Mills"] == (3, 3)
    assert rows["catalog.book: id: b2; author: Berg; title: Weirs"] == (4, 5)
    assert "catalog.note: Read this first." in rows


def test_an_xml_entity_is_not_resolved(read: Read, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("do not read me")
    entity = f'<!DOCTYPE r [<!ENTITY e SYSTEM "{(tmp_path / "secret.txt").as_uri()}">]><r><a>&e;</a><b>fine</b></r>'
    text = "\n".join(block.text for block in read("entity.xml", entity).blocks)
    assert "fine" in text and "do not read me" not in text


@pytest.mark.parametrize("opening", ["[", '{"a":', "[{"])
def test_deep_nesting_is_no_danger(read: Read, opening: str) -> None:
    assert read("deep.json", opening * 20_000 + "1").blocks
