"""Chunks stay within their bounds, lose nothing, keep headings with what they head, and say where they stand."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from desk_rag.config import IndexSettings
from desk_rag.documents.chunking import Chunk, ChunkSize, Location, split
from desk_rag.documents.document import Block, BlockKind, Document, SourceFile, parse
from desk_rag.documents.formats import place_units

SIZE = ChunkSize(smallest=60, target=220, largest=280)
TINY = ChunkSize(smallest=8, target=24, largest=32)


class Counter:
    """Counts in the embedded reader's tokens."""

    def __init__(self, reader_dir: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(reader_dir / "tokenizer.json"))
        self._tokenizer.encode_special_tokens = True

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def counter(reader_dir: Path) -> Counter:
    return Counter(reader_dir)


def make(*blocks: Block, title: str = "") -> Document:
    return Document(SourceFile(Path("/x"), 0, 0, ""), title, blocks, "text/1")


def paragraph(text: str, **where: object) -> Block:
    return Block(text, BlockKind.PARAGRAPH, **where)  # type: ignore[arg-type]


def heading(text: str, path: tuple[str, ...], **where: object) -> Block:
    return Block(text, BlockKind.HEADING, path, **where)  # type: ignore[arg-type]


def sentences(number: int, word: str = "mill") -> str:
    return " ".join(
        f"The {word} number {index} stands near the river and was built by hand." for index in range(number)
    )


def letters(text: str) -> str:
    return re.sub(r"\s+", "", text)


WORDS = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=400)
LONG = st.tuples(st.sampled_from(["a", "字。", "👨‍👩‍👧", "word ", "é", "\n", "x;", "One. "]), st.integers(1, 600)).map(
    lambda pair: pair[0] * pair[1]
)
KINDS = st.sampled_from([kind for kind in BlockKind if kind is not BlockKind.HEADING])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(KINDS, st.one_of(WORDS, LONG)), max_size=8), st.sampled_from([SIZE, TINY]))
def test_no_chunk_is_too_large_and_no_letter_is_lost(
    counter: Counter, parts: list[tuple[BlockKind, str]], size: ChunkSize
) -> None:
    document = make(*(Block(text, kind) for kind, text in parts if text.strip()))
    chunks = split(document, counter, size)
    assert all(chunk.num_tokens == counter.count(chunk.text) <= size.largest for chunk in chunks)
    assert letters("".join(chunk.text for chunk in chunks)) == letters("".join(block.text for block in document.blocks))
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    assert split(document, counter, size) == chunks


HEADED = st.recursive(st.just(()), lambda inner: st.tuples(inner, WORDS), max_leaves=4)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.one_of(st.text("abc DE", max_size=30), LONG), WORDS), max_size=8),
    st.text("Title xyz", max_size=60),
)
def test_headings_and_their_text_are_all_in_some_chunk(
    counter: Counter, sections: list[tuple[int, str, str]], title: str
) -> None:
    path: tuple[str, ...] = ()
    blocks = []
    for depth, name, text in sections:
        name = " ".join(name.split())
        if name:
            path = (*path[: depth - 1], name)
            blocks.append(heading(name, path))
        if text.strip():
            blocks.append(paragraph(text, heading=path))
    chunks = split(make(*blocks, title=title), counter, SIZE)
    everything = letters("".join(chunk.text for chunk in chunks))
    assert all(chunk.num_tokens <= SIZE.largest for chunk in chunks)
    for block in blocks:
        if block.kind is BlockKind.HEADING and counter.count(block.text) < 50:
            assert any(letters(block.text) in letters(chunk.text) for chunk in chunks)
        assert all(everything.count(letter) for letter in set(letters(block.text)))


@pytest.mark.parametrize(
    "unit", ["a", "The mill stands. ", "这是一个很长的句子。", "👨‍👩‍👧‍👦", "e\u0301\u0302", "x" * 90 + " "]
)
@pytest.mark.timeout(30)
def test_one_endless_line(counter: Counter, unit: str) -> None:
    num_bytes = 1_000_000 if unit == "a" else 150_000
    text = unit * (num_bytes // len(unit.encode()))
    chunks = split(make(paragraph(text, line_start=3, line_end=3)), counter, SIZE)
    assert max(chunk.num_tokens for chunk in chunks) <= SIZE.largest
    assert letters("".join(chunk.text for chunk in chunks)) == letters(text)
    assert {str(chunk.location) for chunk in chunks} == {"line 3"}
    assert sum(chunk.num_tokens for chunk in chunks) / len(chunks) > 200


def test_chunk_id_is_the_hash_of_its_text(counter: Counter) -> None:
    (chunk,) = split(make(paragraph("The mill stands.")), counter, SIZE)
    assert chunk.chunk_id == hashlib.blake2b(b"The mill stands.", digest_size=16).hexdigest()


def test_edit_in_one_section_keeps_the_other_chunks(counter: Counter) -> None:
    def document(middle: str) -> Document:
        blocks = []
        for name in ("One", "Two", "Three"):
            path = ("Mills", name)
            blocks += [heading(name, path), paragraph(middle if name == "Two" else sentences(13), heading=path)]
        return make(*blocks, title="Mills")

    before = {chunk.chunk_id for chunk in split(document(sentences(13, "barn")), counter, SIZE)}
    after = {chunk.chunk_id for chunk in split(document(sentences(12, "shed")), counter, SIZE)}
    assert len(before) == len(after) == 3 and len(before & after) == 2


def test_title_line_names_document_and_headings_once(counter: Counter) -> None:
    path = ("Lease agreement", "4 Termination")
    blocks = [
        heading("Lease agreement", path[:1]),
        heading("4 Termination", path),
        paragraph("Either side may end the lease.", heading=path),
    ]
    (chunk,) = split(make(*blocks, title="Lease agreement"), counter, SIZE)
    assert chunk.text == "Lease agreement › 4 Termination\nEither side may end the lease."
    assert chunk.location.heading == "Lease agreement"
    (titled,) = split(make(paragraph("Either side."), title="Lease"), counter, SIZE)
    assert titled.text == "Lease\nEither side."
    (bare,) = split(make(paragraph("Either side.")), counter, SIZE)
    assert bare.text == "Either side."


def test_small_sections_share_a_chunk_under_their_common_heading(counter: Counter) -> None:
    blocks = []
    for name in ("Door", "Roof", "Wall"):
        path = ("House", name)
        blocks += [heading(name, path), paragraph(f"The {name.lower()} is green.", heading=path)]
    (chunk,) = split(make(*blocks), counter, SIZE)
    assert chunk.text == "House\nDoor\nThe door is green.\nRoof\nThe roof is green.\nWall\nThe wall is green."


def test_cuts_fall_at_headings_where_the_sizes_allow(counter: Counter) -> None:
    blocks = []
    for name in "ABCDEF":
        blocks.append(heading(name, (name,)))
        blocks += [paragraph(sentences(4, f"{name}{part}"), heading=(name,)) for part in range(3)]
    chunks = split(make(*blocks), counter, SIZE)
    assert [chunk.text.split("\n")[0] for chunk in chunks] == list("ABCDEF")


def test_a_heading_never_ends_a_chunk(counter: Counter) -> None:
    for fill in range(8, 20):
        path = ("House", "Roof")
        document = make(
            heading("House", path[:1]),
            paragraph(sentences(fill), heading=path[:1]),
            heading("Roof", path),
            paragraph("The roof is of slate. " * 20, heading=path),
        )
        for chunk in split(document, counter, SIZE):
            assert chunk.text.rstrip().split("\n")[-1] not in path


def test_long_paragraphs_are_cut_between_sentences_with_exact_lines(counter: Counter) -> None:
    lines = [f"Sentence {index} says that the mill near the river was built by hand." for index in range(60)]
    block = paragraph("\n".join(lines), line_start=11, line_end=70)
    chunks = split(make(block), counter, SIZE)
    assert len(chunks) > 3
    sentence = 0
    for chunk in chunks:
        assert chunk.text.endswith("hand.") and "\n" not in chunk.text
        number = chunk.text.count("Sentence")
        assert (chunk.location.line_start, chunk.location.line_end) == (11 + sentence, 11 + sentence + number - 1)
        sentence += number


def test_lines_of_a_wrapped_sentence_reach_over_its_cut(counter: Counter) -> None:
    words = [f"word{index}" for index in range(400)]
    wrapped = "\n".join(" ".join(words[at : at + 10]) for at in range(0, 400, 10))
    chunks = split(make(paragraph(wrapped, line_start=1, line_end=40)), counter, SIZE)
    for chunk in chunks:
        numbers = [int(word.removeprefix("word")) for word in chunk.text.split()]
        assert chunk.location.line_start == numbers[0] // 10 + 1
        assert chunk.location.line_end == numbers[-1] // 10 + 1


def test_pages_span_the_chunk(counter: Counter) -> None:
    blocks = [paragraph(sentences(3), page=page) for page in (4, 4, 5)]
    (chunk,) = split(make(*blocks), counter, SIZE)
    assert str(chunk.location) == "pp. 4-5"


def test_table_rows_stay_whole(counter: Counter) -> None:
    rows = [
        Block(f"Name: Mill {n}; Town: Velm; Built: {1700 + n}", BlockKind.TABLE, (), None, n, n) for n in range(2, 80)
    ]
    chunks = split(make(*rows), counter, SIZE)
    assert [line for chunk in chunks for line in chunk.text.split("\n")] == [row.text for row in rows]


def test_code_keeps_its_indentation_and_blank_lines(counter: Counter) -> None:
    body = "\n".join(f"    value_{index} = compute(value_{index - 1}, scale={index})" for index in range(1, 90))
    code = f"def long(value_0):\n{body}\n\n    return value_89"
    blocks = [
        Block("import os", BlockKind.CODE, (), None, 1, 1),
        Block(code, BlockKind.CODE, (), None, 4, 4 + code.count("\n")),
    ]
    source = ["import os", "", "", *code.split("\n")]
    chunks = split(make(*blocks), counter, SIZE)
    assert len(chunks) > 4
    for chunk in chunks:
        start, end = chunk.location.line_start, chunk.location.line_end
        assert start and end
        wanted = [line for line in source[start - 1 : end] if line.strip()]
        assert [line for line in chunk.text.split("\n") if line.strip()] == wanted


def test_lead_in_stays_with_its_list(counter: Counter) -> None:
    items = [Block(f"- part {n} of the wheel, made of oak", BlockKind.LIST) for n in range(9)]
    document = make(paragraph(sentences(10)), paragraph("The wheel has these parts:"), *items)
    lead = next(chunk for chunk in split(document, counter, SIZE) if "these parts:" in chunk.text)
    assert "- part 0" in lead.text


def test_absurdly_long_headings_are_cut_like_text(counter: Counter) -> None:
    name = sentences(40, "heading")
    chunks = split(make(heading(name, (name,)), paragraph("Body.", heading=(name,)), title="T" * 900), counter, SIZE)
    assert max(chunk.num_tokens for chunk in chunks) <= SIZE.largest
    assert letters(name) in letters("".join(chunk.text for chunk in chunks))
    assert any("Body." in chunk.text for chunk in chunks)


def test_an_empty_document_has_no_chunks(counter: Counter) -> None:
    assert split(make(title="Only a title"), counter, SIZE) == []


def test_location_reads_well() -> None:
    assert str(Location(page_start=4, page_end=4)) == "p. 4"
    assert str(Location(line_start=12, line_end=40)) == "lines 12-40"
    assert str(Location(line_start=7, line_end=7)) == "line 7"
    assert str(Location()) == ""


def sample_chunks(sample_docs: Path, counter: Counter) -> list[tuple[Path, Chunk]]:
    files = [path for path in sorted(sample_docs.rglob("*")) if path.is_file()]
    return [(path, chunk) for path in files for chunk in split(parse(path, IndexSettings()), counter, SIZE)]


def test_sample_documents_fill_their_chunks(sample_docs: Path, counter: Counter) -> None:
    """Fixed costs of each chunk make small ones dear: the mean must stay well above half of the target."""
    chunks = [chunk for _, chunk in sample_chunks(sample_docs, counter)]
    assert sum(chunk.num_tokens for chunk in chunks) / len(chunks) >= 190
    assert min(chunk.num_tokens for chunk in chunks) >= SIZE.smallest
    assert max(chunk.num_tokens for chunk in chunks) <= SIZE.largest


def test_lines_of_sample_chunks_hold_their_words(sample_docs: Path, counter: Counter) -> None:
    checked = 0
    for path, chunk in sample_chunks(sample_docs, counter):
        start, end = chunk.location.line_start, chunk.location.line_end
        if start is None or end is None or place_units(path.name).line != "line":
            continue
        named = " ".join(path.read_text(encoding="utf-8").split("\n")[start - 1 : end])
        body = chunk.text.split("\n")[-1]
        for word in re.findall(r"[a-z]{5,}", body):
            assert word in named or path.suffix in (".csv", ".md"), (path, word)
        checked += 1
    assert checked > 50
