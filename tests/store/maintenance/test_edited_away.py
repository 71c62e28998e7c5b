"""Edited, renamed and excluded text is in no file of a scrubbed store; `verify` knows if not."""

from __future__ import annotations

from pathlib import Path

from desk_rag.config import StoreSettings
from desk_rag.documents.status import FileState
from desk_rag.store.maintenance import verify
from desk_rag.store.store import Store
from tests.store import made
from tests.store.maintenance.test_deletion import raw

A, B = Path("/home/u/a.md"), Path("/home/u/b.md")
CANARY = "Zaphodbeeblebrox owes quatloos"
NEEDLES = ("Zaphodbeeblebrox", "zaphodbeeblebrox", "quatloo", "Secretcanarytitle", "ecretcanary")


def traces(root: Path, *needles: str) -> list[str]:
    content = raw(root)
    return [needle for needle in needles for code in ("utf-8", "utf-16-le") if needle.encode(code) in content]


def fill(store: Store) -> None:
    others = [f"other text number {number} about rent and gardens" for number in range(300)]
    store.put_document(made.document(B, others), made.chunks(others), made.stamp())
    store.put_document(made.document(A, [CANARY], "Secretcanarytitle"), [made.chunk(CANARY)], made.stamp())
    store.checkpoint()


def test_an_edit_leaves_nothing_behind(store: Store, root: Path) -> None:
    fill(store)
    assert traces(root, *NEEDLES), "the search itself works"
    assert not store.scrub_owed()
    store.put_document(made.document(A, ["harmless words"]), [made.chunk("harmless words")], made.stamp())
    assert store.scrub_owed()
    assert store.checkpoint() and not store.scrub_owed()
    assert traces(root, *NEEDLES) == []
    assert len(store.search_words("gardens", 500)) == 300 and store.verify().clean


def test_an_old_file_name_leaves_nothing_behind(store: Store, root: Path) -> None:
    fill(store)
    store.rename_document(A, Path("/home/u/Quicksilverfish.md"), made.stamp())
    store.checkpoint()
    assert traces(root, "uicksilverfish"), "the search itself works"
    store.rename_document(Path("/home/u/Quicksilverfish.md"), A, made.stamp())
    assert store.checkpoint()
    assert traces(root, "uicksilverfish") == []


def test_a_file_that_is_left_out_now_leaves_nothing_behind(store: Store, root: Path) -> None:
    fill(store)
    store.record_outcome(A, FileState.SKIPPED, "secret: *.key", None)
    assert store.checkpoint()
    assert traces(root, *NEEDLES) == []


def test_a_reader_in_the_way_keeps_the_scrub_owed(store: Store, root: Path) -> None:
    fill(store)
    store.put_document(made.document(A, ["harmless"]), [made.chunk("harmless")], made.stamp())
    with Store.open(root, StoreSettings(budget_gib=1, reserve_gib=0), writer=False) as reader:
        with reader._database.snapshot() as connection:
            connection.execute("SELECT count(*) FROM chunks").fetchone()
            with store._database.read() as own:
                own.execute("PRAGMA busy_timeout = 50")
            assert not store.checkpoint()
        assert store.scrub_owed()
    assert store.checkpoint() and not store.scrub_owed()
    assert traces(root, *NEEDLES) == []


def test_verify_names_what_was_not_scrubbed_and_repair_scrubs_it(store: Store, root: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    fill(store)
    store.put_document(made.document(A, ["harmless"]), [made.chunk("harmless")], made.stamp())
    assert store.verify().clean, "a running watch has a minute's time"
    monkeypatch.setattr(verify, "_SCRUB_SECONDS", 0.0)
    (problem,) = store.verify().problems
    assert "edited away" in problem.what and not problem.repaired
    assert traces(root, *NEEDLES)
    (problem,) = store.verify(repair=True).problems
    assert problem.repaired and traces(root, *NEEDLES) == [] and store.verify().clean
