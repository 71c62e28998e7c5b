"""Make the changes that other commands ask of the process that indexes, one after the other, in its own thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import IndexSettings
from desk_rag.documents.status import FileState
from desk_rag.indexer.once import Run, fill_before_question
from desk_rag.indexer.resident import values
from desk_rag.indexer.resident.protocol import Message, NoResident
from desk_rag.indexer.resident.server import Server
from desk_rag.ingest import deletions
from desk_rag.ingest.events import FileEvent, IndexEvent, IndexFinished
from desk_rag.store.catalog.deletion_rows import Decision

if TYPE_CHECKING:
    from desk_rag.indexer.service import Service
    from desk_rag.store.store import Store
    from desk_rag.store.types import PurgeReport

Emit = Callable[[Message], None]
Stop = Callable[[], bool]


@contextmanager
def taking_changes(service: Service, data_dir: Path) -> Iterator[None]:
    """Make the changes that other commands ask for during the block, and leave every other request to them."""

    def handle(request: Message, stop: Stop) -> Iterator[Message]:
        if request.get("do") not in WORK or request["do"] == "index":
            raise NoResident("")
        return carry_out(service, request, stop)

    server = Server(data_dir, handle)
    server.start()
    try:
        yield
    finally:
        server.stop()


def carry_out(service: Service, request: Message, stop: Stop) -> Iterator[Message]:
    """Make the change that `request` names, after the step in progress. Raises DeskRagError, Cancelled."""
    work = WORK[str(request["do"])]
    yield {"waits": service.is_working()}

    def run(emit: Emit) -> None:
        work(service, request, emit, stop)

    yield from service.perform(run, stop)


def _index(service: Service, request: Message, emit: Emit, stop: Stop) -> None:
    """Bring folders and files up to date, by the index settings of the request, which hold from now on."""
    folders = _use_index_settings(service, request)
    filling = fill_before_question if request.get("before_question") else None
    run = Run(service.parts_in_task, service.settings, stop, _Relay(service, emit), warm_pending=filling)
    finished = run.run(folders, warm=bool(request.get("warm")))
    service.report(finished)
    emit({"finished": values.plain(finished)})


def _decide(service: Service, request: Message, emit: Emit, stop: Stop) -> None:
    """Keep the documents below a folder whose files are gone, or remove them."""
    store, keep, folder = service.parts.store, bool(request.get("keep")), Path(str(request["folder"]))
    deletions.note_missing(store, folder)
    count = store.deletions.decide(folder, Decision.KEPT if keep else Decision.CONFIRMED)
    removed = 0 if keep or not count else deletions.remove_confirmed(store)
    if removed:
        store.checkpoint()
    emit({"documents": count, "removed": removed})


def _purge(service: Service, request: Message, emit: Emit, stop: Stop) -> None:
    """Forget a folder, and leave it out until this process ends: it would be read again at once."""
    path = Path(str(request["folder"]))
    left_out = service.leave_out(path)
    check, keep_caches = bool(request.get("check")), bool(request.get("keep_caches"))
    report = forget(service.parts.store, path, check=check, keep_caches=keep_caches)
    emit({"report": values.plain(report), "left_out": left_out})


def forget(store: Store, path: Path, *, check: bool = False, keep_caches: bool = False) -> PurgeReport:
    """Remove what was derived from `path`; with `keep_caches`, chunk KV stays as long as that of deleted files."""
    if not keep_caches:
        return store.purge(path, verify=check)
    from desk_rag.store.types import PurgeReport

    documents, chunks, *_ = store.remove_documents([row.path for row in store.documents(path)], keep_kv=True)
    store.volumes.forget(path)
    store.checkpoint()
    return PurgeReport(documents, chunks, kv_files=0, freed_bytes=0, verified=False, traces=())


def remove_excluded(store: Store, paths: Iterable[Path]) -> None:
    """Remove the documents at and below `paths`, which a rule leaves out; their chunk KV stays for a while."""
    store.remove_documents([row.path for path in paths for row in store.documents(path)], keep_kv=True)


def _obey(service: Service, request: Message, emit: Emit, stop: Stop) -> None:
    """Look through all folders by the index settings of the request, which hold from now on.

    What is wanted again of the request is indexed again if this process was given it.
    """
    wanted, excluded, folders = _use_index_settings(service, request), request.get("excluded"), service.folders
    if isinstance(excluded, list):
        remove_excluded(service.parts.store, [Path(str(path)) for path in excluded])
    service.sweep()
    emit({"obeyed": all(path in folders or any(folder in path.parents for folder in folders) for path in wanted)})


def _use_index_settings(service: Service, request: Message) -> list[Path]:
    """Read files by the settings of `request` from now on; return its folders, which are wanted again if left out."""
    folders = request["folders"]
    assert isinstance(folders, list)
    paths = [Path(str(folder)) for folder in folders]
    service.use_index_settings(IndexSettings.model_validate(request["index"]), paths)
    return paths


def _repair(service: Service, request: Message, emit: Emit, stop: Stop) -> None:
    """Check the store and remove what is damaged."""
    subset, store = request.get("subset"), service.parts.store
    part = (int(subset[0]), int(subset[1])) if isinstance(subset, list) else None
    report = store.verify(repair=True, subset=part)
    emit({"report": values.plain(report), "notices": list(store.notices), "kv_away": store.kv_away})


WORK: dict[str, Callable[[Service, Message, Emit, Stop], None]] = {
    "index": _index,
    "index_settings": _obey,
    "deletions": _decide,
    "purge": _purge,
    "repair": _repair,
}


class _Relay:
    """Passes the progress of a run on to whoever asked for it, and to the listeners of this process."""

    def __init__(self, service: Service, emit: Emit) -> None:
        self._service, self._emit = service, emit

    def passing(self, text: str) -> None:
        self._emit({"passing": text})

    def say(self, text: str) -> None:
        self._emit({"say": text})

    def show(self, event: IndexEvent) -> None:
        if isinstance(event, IndexFinished):
            return  # one folder's; the summary of all follows
        self._service.report(event)
        if not (isinstance(event, FileEvent) and event.state is FileState.UNCHANGED):
            self._emit(values.of_event(event))
