"""Whatever happens to files: indexing what changed gives the same catalog as indexing everything anew."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from desk_rag.config import IndexSettings, StoreSettings
from desk_rag.documents.status import FileState
from desk_rag.ingest.events import IndexFinished
from desk_rag.ingest.pipeline import index_path, sync_folder
from desk_rag.model.prompt import PromptFormat, load_prompt
from desk_rag.store.store import Store
from tests.documents import desk_files

STORE = StoreSettings(budget_gib=1, reserve_gib=0)
FOLDERS = st.sampled_from(["", "a", "b", "a/deep"])
NAMES = st.sampled_from(
    ["one.txt", "two.md", "three.txt", "picture.png", "old.txt~", "data.json", "page.html", "mail.eml", "inbox.mbox",
     "dates.ics", "people.vcf", "table.csv", "paper.tex", "refs.bib", "plan.org", "letter.odt", "costs.xlsx",
     "talk.pptx", "novel.epub", "rain.ipynb", "saved.mhtml", "nosuffix"]
)  # fmt: skip
SOME = [
    "The roofer comes on 14 May.\n",
    "The spare key lies under the flower pot.\n",
    "# Barge\n\nThe barge was late again.\n\n## Why\n\nNobody knew.\n",
    "The barge was late again, and nobody knew why. " * 60,
    "The roofer comes on 14 May.\n",
    '{"door": {"colour": "green"}, "keys": [{"name": "shed", "hook": 4}]}\n',
    "<html><body><div class=menu><a>Home</a></div><p>The barge was late again.</p></body></html>\n",
]
OTHERS = [
    desk_files.eml(), desk_files.mbox(), desk_files.ICS, desk_files.VCF, "Item;Due\nBarge;14 May\n", desk_files.LATEX,
    desk_files.BIB, desk_files.ORG, desk_files.odt(), desk_files.xlsx(), desk_files.pptx(), desk_files.epub(),
    desk_files.ipynb(), desk_files.mhtml(),
]  # fmt: skip
"""One file of each of the other formats; any of them may get any name."""
CONTENTS = st.one_of(
    st.sampled_from([*SOME, "", "\x00\x01 not text"]).map(str.encode),
    st.sampled_from([other if isinstance(other, bytes) else other.encode() for other in OTHERS]),
)
KEPT = ("stays.txt", ".gitignore")
WHICH = st.integers(0, 30)
RULES = st.sampled_from(["", "*.md\n", "a/\n", "one.txt\n!b/one.txt\n"])


class Incremental(RuleBasedStateMachine):
    """Random changes to a folder, now and then indexed by a sweep or by single paths."""

    prompt: PromptFormat

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.root = self.place / "docs"
        self.root.mkdir()
        (self.root / "stays.txt").write_text("This one is always there.\n")
        for n, name in enumerate(("one.txt", "a/two.md", "b/three.txt", "a/deep/one.txt", "b/copy.txt")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(SOME[n])
        self.store = Store.open(self.place / "data", STORE, writer=True)
        self.touched: set[Path] = set()
        self.swept = False
        self.sweep()

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.store.close()
            shutil.rmtree(self.place)

    def _path(self, folder: str, name: str) -> Path:
        return self.root / folder / name

    @rule(folder=FOLDERS, name=NAMES, content=CONTENTS)
    def write(self, folder: str, name: str, content: bytes) -> None:
        file = self._path(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        self._changed(file)

    @rule(folder=FOLDERS, name=NAMES, content=CONTENTS)
    def save_atomically(self, folder: str, name: str, content: bytes) -> None:
        file = self._path(folder, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(".tmp-save")
        temporary.write_bytes(content)
        temporary.replace(file)
        self._changed(file)

    @rule(which=WHICH)
    def delete(self, which: int) -> None:
        for file in self._pick(which):
            file.unlink()
            self._changed(file)

    @rule(which=WHICH, content=CONTENTS)
    def edit(self, which: int, content: bytes) -> None:
        for file in self._pick(which):
            file.write_bytes(content)
            self._changed(file)

    @rule(which=WHICH, folder=FOLDERS, name=NAMES)
    def rename(self, which: int, folder: str, name: str) -> None:
        new = self._path(folder, name)
        for old in self._pick(which):
            new.parent.mkdir(parents=True, exist_ok=True)
            old.replace(new)
            self._changed(new, old)

    @rule(which=WHICH, folder=FOLDERS, name=NAMES)
    def copy(self, which: int, folder: str, name: str) -> None:
        new = self._path(folder, name)
        for old in self._pick(which):
            if old != new:
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(old, new)
                self._changed(new)

    @rule()
    def swap_folders(self) -> None:
        a, b, aside = self.root / "a", self.root / "b", self.place / "aside"
        if a.is_dir():
            a.rename(aside)
        if b.is_dir():
            b.rename(a)
        if aside.is_dir():
            aside.rename(b)
        self.swept = False

    @rule(text=RULES)
    def ignore(self, text: str) -> None:
        (self.root / ".gitignore").write_text(text)
        self.swept = False

    @rule(which=WHICH)
    def set_back(self, which: int) -> None:
        for file in self._pick(which):
            os.utime(file, (1_000_000_000, 1_000_000_000))
            self._changed(file)

    @rule()
    def sweep(self) -> None:
        events = list(self._sync(self.store))
        assert isinstance(events[-1], IndexFinished)
        self.touched.clear()
        self.swept = True
        self._compare()

    @rule()
    def hints(self) -> None:
        """Index the touched paths one by one, as the watcher does between sweeps, in any order."""
        for path in self.touched:
            index_path(self.store, path, self.root, self.prompt, self.prompt.chunk_size, IndexSettings())
        self.touched.clear()
        if self.swept:
            self._compare(ledger=False)

    @invariant()
    def nothing_is_orphaned(self) -> None:
        if hasattr(self, "store"):
            in_documents = {
                passage.chunk.chunk_id
                for row in self.store.documents(self.root)
                for passage in self.store.passages_of(row.path)
            }
            assert self.store.counts().chunks == len(in_documents)

    def _pick(self, which: int) -> list[Path]:
        """One of the files there are, never the one that keeps the folder from being empty."""
        files = sorted(path for path in self.root.rglob("*.*") if path.is_file() and path.name not in KEPT)
        return files[which % len(files) :][:1] if files else []

    def _changed(self, *paths: Path) -> None:
        self.touched.update(paths)

    def _sync(self, store: Store):  # type: ignore[no-untyped-def]
        return sync_folder(store, self.root, self.prompt, self.prompt.chunk_size, IndexSettings(), lambda: False)

    def _compare(self, *, ledger: bool = True) -> None:
        with Store.open(self.place / "fresh", STORE, writer=True) as fresh:
            list(self._sync(fresh))
            assert _contents(self.store, self.root, ledger) == _contents(fresh, self.root, ledger)
        shutil.rmtree(self.place / "fresh")


def _contents(store: Store, root: Path, ledger: bool) -> dict[str, object]:
    """Everything the catalog tells of each path, times of indexing excepted."""
    contents: dict[str, object] = {}
    for row in store.documents(root):
        if row.state is FileState.INDEXED or ledger:
            passages = [
                (p.chunk.ordinal, p.chunk.chunk_id, p.chunk.text, p.chunk.location) for p in store.passages_of(row.path)
            ]
            known = (row.state, row.digest, row.title, row.stamp, row.reason, row.num_chunks)
            contents[str(row.path)] = (*known, passages)
    for word in ("roofer", "barge", "key", "always"):
        hits = store.search_words(word, 50)
        contents[f"? {word}"] = {str(hit.chunk_id) for hit in hits}
    return contents


@pytest.mark.slow
def test_incremental_equals_clean(reader_dir: Path) -> None:
    Incremental.prompt = load_prompt(reader_dir)
    run_state_machine_as_test(
        Incremental,
        settings=settings(
            max_examples=15,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
