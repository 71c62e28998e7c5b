"""The store against a model of it: any order of operations, restarts and damage included, gives what the model says."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from desk_rag.store.store import Store
from tests.store import made
from tests.store.kv.test_chunk_file import flipped
from tests.store.kv.test_reconcile import on_disk, place

PATHS = st.sampled_from([Path(f"/d/{name}") for name in ("a", "b", "sub/a", "sub/c")])
TEXTS = [f"word{number} common text" for number in range(6)]
CONTENT = st.lists(st.sampled_from(TEXTS), max_size=4, unique=True)
NAMESPACES = st.sampled_from([made.NS, made.OTHER_NS])


class StoreModel(RuleBasedStateMachine):
    """Documents are lists of texts; KV is a set of (text, namespace) whose text some document holds."""

    @initialize()
    def start(self) -> None:
        torch.set_num_threads(1)
        memory = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None)) / "data"
        self.store = Store.open(self.root, made.settings(), writer=True)
        self.documents: dict[Path, list[str]] = {}
        self.kv: set[tuple[str, str]] = set()
        self.damaged: set[tuple[str, str]] = set()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.root.parent)

    def settle(self) -> None:
        texts_indexed = {text for texts in self.documents.values() for text in texts}
        self.kv = {pair for pair in self.kv if pair[0] in texts_indexed}
        self.damaged &= self.kv

    @rule(path=PATHS, texts=CONTENT)
    def put_document(self, path: Path, texts: list[str]) -> None:
        self.store.put_document(made.document(path, texts), made.chunks(texts), made.stamp())
        self.documents[path] = texts
        self.settle()

    @rule(path=PATHS)
    def remove_document(self, path: Path) -> None:
        self.store.remove_document(path)
        self.documents.pop(path, None)
        self.settle()

    @rule(old=PATHS, new=PATHS)
    def rename_document(self, old: Path, new: Path) -> None:
        self.store.rename_document(old, new, made.stamp())
        if old in self.documents:
            self.documents[new] = self.documents.pop(old)
        self.settle()

    @rule(text=st.sampled_from(TEXTS), namespace=NAMESPACES)
    def put_kv(self, text: str, namespace: str) -> None:
        key = made.key(text, made.Namespace(namespace))
        is_used = any(text in texts for texts in self.documents.values())
        assert self.store.put_kv(key, made.kv_for(key), [made.chunk_id(text)], 0.5) == is_used
        if is_used:
            self.kv.add((text, namespace))

    @precondition(lambda self: self.kv)
    @rule(data=st.data(), position=st.integers(0, 5375))
    def damage(self, data: st.DataObject, position: int) -> None:
        text, namespace = data.draw(st.sampled_from(sorted(self.kv)))
        if (text, namespace) not in self.damaged:
            flipped(place(self.root, text, namespace), position)
            self.damaged.add((text, namespace))

    @rule(namespace=NAMESPACES)
    def get_kv(self, namespace: str) -> None:
        keys = [made.key(text, made.Namespace(namespace)) for text in TEXTS]
        for text, key, kv in zip(TEXTS, keys, self.store.get_kv(keys), strict=True):
            pair = (text, namespace)
            if pair in self.damaged or pair not in self.kv:
                assert kv is None
            else:
                assert made.same(kv, made.kv_for(key))
        self.kv -= {pair for pair in self.damaged if pair[1] == namespace}
        self.damaged &= self.kv

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = Store.open(self.root, made.settings(), writer=True)

    @rule()
    def repair(self) -> None:
        report = self.store.verify(repair=True)
        assert len(report.problems) == len(self.damaged)
        self.kv -= self.damaged
        self.damaged.clear()

    @rule()
    def purge_folder(self) -> None:
        report = self.store.purge(Path("/d/sub"), verify=True)
        assert report.traces == ()
        self.documents = {path: texts for path, texts in self.documents.items() if path.parent.name != "sub"}
        self.settle()

    @invariant()
    def documents_are_the_models(self) -> None:
        if not hasattr(self, "store"):
            return
        assert [row.path for row in self.store.documents()] == sorted(self.documents, key=bytes)
        for path, texts in self.documents.items():
            assert [passage.chunk.text for passage in self.store.passages_of(path)] == texts
        expected = {text for texts in self.documents.values() for text in texts}
        matching = {hit.chunk_id for hit in self.store.search_words("common", 99)}
        assert matching == {made.chunk_id(text) for text in expected}

    @invariant()
    def kv_is_the_models(self) -> None:
        if not hasattr(self, "store"):
            return
        for namespace in (made.NS, made.OTHER_NS):
            keys = {made.key(text, namespace): text for text in TEXTS}
            keys_on_disk = {(keys[key], str(namespace)) for key in self.store.has_kv(list(keys))}
            assert keys_on_disk == {pair for pair in self.kv if pair[1] == namespace}
        assert self.store.counts(made.NS).kv_bytes == on_disk(self.root)
        assert len(self.store.verify().problems) == len(self.damaged)


StoreModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStoreModel = StoreModel.TestCase
