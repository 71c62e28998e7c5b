"""The one of several equal files that people mean is cited, and the others are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.store.store import Store
from tests.store import made

TEXT = "The rent of Mill Street is 900 euro."
DESK = Path("/desk")


@pytest.mark.parametrize(
    ("plain", "others"),
    [
        (("work/tools.txt", 20), [("links/hard.txt", 20)]),
        (("home/letters/rent-2022.txt", 20), [("broken/minutes-2019.txt", 20)]),
        (("home/letters/2022/x.txt", 20), [("a.txt", 30), ("b.txt", 40)]),
        (("z/lease.txt", 50), [("Downloads/lease.txt", 10), ("a/lease (1).txt", 10), ("a/Copy of lease.txt", 10)]),
        (("work/a.txt", 20), [("work/deeper/a.txt", 20)]),
    ],
)
def test_the_plain_one_is_cited(tmp_path: Path, plain: tuple[str, int], others: list[tuple[str, int]]) -> None:
    with Store.open(tmp_path, made.settings(), writer=True) as store:
        for name, mtime_ns in (*others, plain):
            store.put_document(made.document(DESK / name, [TEXT]), made.chunks([TEXT]), made.stamp(mtime_ns))
        passage = store.passage(made.chunk_id(TEXT))
        assert passage is not None and (passage.path, passage.copies) == (DESK / plain[0], len(others))
        store.remove_document(DESK / plain[0])
        passage = store.passage(made.chunk_id(TEXT))
        assert passage is not None and passage.copies == len(others) - 1
        inside = store.passage(made.chunk_id(TEXT), [DESK / others[0][0]])
        assert inside is not None and (inside.path, inside.copies) == (DESK / others[0][0], 0)


def test_a_link_is_not_cited_in_place_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "z.txt").write_text(TEXT)
    (tmp_path / "a.txt").symlink_to(tmp_path / "z.txt")
    with Store.open(tmp_path / "data", made.settings(), writer=True) as store:
        for name in ("a.txt", "z.txt"):
            store.put_document(made.document(tmp_path / name, [TEXT]), made.chunks([TEXT]), made.stamp())
        passage = store.passage(made.chunk_id(TEXT))
        assert passage is not None and (passage.path.name, passage.copies) == ("z.txt", 1)


def test_another_document_with_the_same_passage_is_no_copy(tmp_path: Path) -> None:
    with Store.open(tmp_path, made.settings(), writer=True) as store:
        for name, texts in (("b.txt", [TEXT]), ("a.txt", [TEXT, "More."])):
            document = made.document(DESK / name, texts)
            store.put_document(replace(document, title=""), made.chunks(texts), made.stamp())
        passage = store.passage(made.chunk_id(TEXT))
        assert passage is not None and (passage.path.name, passage.copies) == ("a.txt", 0)
