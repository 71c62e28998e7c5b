"""KV files found for the load path: counted, put aside and forgotten exactly as when they are read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.kv.types import KVKey
from desk_rag.store.kv import header as kv_header
from desk_rag.store.store import Store
from tests.store import made

TEXTS = ["one", "two", "three", "four"]


@pytest.fixture
def filled(store: Store) -> dict[str, KVKey]:
    """One document of four chunks, all but the last with KV."""
    store.put_document(made.document(Path("/d/a.txt"), TEXTS), made.chunks(TEXTS), made.stamp())
    keys = {text: made.key(text) for text in TEXTS}
    for text in TEXTS[:3]:
        assert store.put_kv(keys[text], made.kv_for(keys[text]), [made.chunk_id(text)], 0.5)
    return keys


def place(store: Store, key: KVKey) -> Path:
    return store._layout.kv_file(str(key.namespace), str(key.tokens))


def quarantine(store: Store) -> int:
    return len(list(store._layout.quarantine.iterdir()))


def hits(store: Store, key: KVKey) -> float:
    store._kv.flush_hits()
    with store._database.read() as connection:
        return float(connection.execute("SELECT hits FROM kv WHERE tokens = ?", (str(key.tokens),)).fetchone()[0])


def test_files_come_in_order_with_their_headers_and_none_for_a_miss(store: Store, filled: dict[str, KVKey]) -> None:
    files = store.kv_files([filled["two"], filled["four"], filled["one"]])
    assert files[1] is None
    for file, text in ((files[0], "two"), (files[2], "one")):
        assert file is not None
        assert file.path == place(store, filled[text])
        assert file.header == kv_header.read_header(file.path)


def test_uses_are_counted_as_when_reading_and_guesses_are_not(store: Store, filled: dict[str, KVKey]) -> None:
    store.get_kv([filled["one"]])
    store.kv_files([filled["two"]])
    store.kv_files([filled["three"]], used=False)
    one, two, three = (hits(store, filled[text]) for text in TEXTS[:3])
    assert one == pytest.approx(two, rel=1e-3)  # each use lets earlier ones fade a little
    assert three < 0.9 * two


def test_a_header_is_read_once_per_file(
    store: Store, filled: dict[str, KVKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    real = kv_header.read_header

    def counted(path: Path) -> object:
        reads.append(path)
        return real(path)

    monkeypatch.setattr(kv_header, "read_header", counted)
    for _ in range(3):
        assert store.kv_files([filled["one"], filled["two"]])[0] is not None
    assert len(reads) == 2
    path = place(store, filled["one"])
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)  # the same bytes, another file
    assert store.kv_files([filled["one"]])[0] is not None
    assert len(reads) == 3


@pytest.mark.parametrize("at", [3, 60, 2000])
def test_a_broken_header_is_put_aside_and_its_row_dropped(store: Store, filled: dict[str, KVKey], at: int) -> None:
    path = place(store, filled["two"])
    content = bytearray(path.read_bytes())
    content[at] ^= 8
    path.write_bytes(content)
    one, two = store.kv_files([filled["one"], filled["two"]])
    assert one is not None and two is None
    assert quarantine(store) == 1
    assert store.has_kv(list(filled.values())) == {filled["one"], filled["three"]}


def test_a_file_of_another_chunk_is_put_aside(store: Store, filled: dict[str, KVKey]) -> None:
    assert store.kv_files([filled["one"]])[0] is not None
    place(store, filled["one"]).replace(place(store, filled["two"]))
    assert store.kv_files([filled["two"]]) == [None]
    assert quarantine(store) == 1


def test_a_missing_file_loses_its_row(store: Store, filled: dict[str, KVKey]) -> None:
    place(store, filled["two"]).unlink()
    assert store.kv_files([filled["two"]]) == [None]
    assert filled["two"] not in store.has_kv([filled["two"]])


def test_what_could_not_be_loaded_is_checked_whole_and_put_aside_only_if_unsound(
    store: Store, filled: dict[str, KVKey]
) -> None:
    assert all(kv is not None for kv in store.get_kv([filled["one"], filled["two"]]))
    path = place(store, filled["two"])
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    before = hits(store, filled["one"])
    one, two = store.reread_kv([filled["one"], filled["two"]])
    assert one is not None and two is None
    assert all(
        made.same_layer(a, b) for a, b in zip(one.layers, made.kv_for(filled["one"]).layers, strict=True)
    )
    assert quarantine(store) == 1
    assert hits(store, filled["one"]) == before


def test_keys_by_chunk_and_of_the_neighbours(store: Store, filled: dict[str, KVKey]) -> None:
    ids = {text: made.chunk_id(text) for text in TEXTS}
    assert store.kv_keys(made.NS, [ids["two"], ids["four"], ids["one"]]) == [filled["two"], filled["one"]]
    assert store.kv_keys(made.OTHER_NS, [ids["two"]]) == []
    assert store.kv_keys(made.NS, [ids["two"]], beside=True) == [filled["three"], filled["one"]]
    assert store.kv_keys(made.NS, [ids["one"], ids["two"]], beside=True) == [filled["three"]], "not what is read anyway"
    assert store.kv_keys(made.NS, [ids["four"]], beside=True) == [filled["three"]]
    assert store.kv_keys(made.NS, []) == []
