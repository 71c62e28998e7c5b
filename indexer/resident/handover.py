"""Have the process that indexes make a change, since it alone writes to the store while it runs.

Every function raises NoResident if there is no such process, or if it leaves the change to this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from desk_rag.config import Settings
from desk_rag.errors import StoreError
from desk_rag.indexer.resident import client, values
from desk_rag.indexer.resident.protocol import Message
from desk_rag.ingest import events
from desk_rag.ingest.progress import ProgressDisplay

if TYPE_CHECKING:
    from desk_rag.store.types import PurgeReport, VerifyReport

_STEP = "waiting until the desk-rag that is running has finished a step …"


class Display(ProgressDisplay, Protocol):
    """Shows progress where it can be erased again; the command line implements it."""

    def clear(self) -> None: ...


def index(
    settings: Settings,
    roots: Sequence[Path],
    *,
    warm: bool,
    before_question: bool = False,
    progress: Display,
    stop: Callable[[], bool],
) -> events.IndexFinished:
    """Bring `roots` up to date, showing the progress; `before_question`, caches are made for a while only."""
    request: dict[str, object] = {"do": "index", "folders": [str(root) for root in roots], "warm": warm}
    request["before_question"] = before_question
    request |= {"settings": values.settings_key(settings), "index": settings.index.model_dump(mode="json")}
    for message in _messages(settings, request, progress, stop):
        if "finished" in message:
            finished: events.IndexFinished = values.built(events.IndexFinished, message["finished"])
            return finished
        if "say" in message:
            progress.say(str(message["say"]))
        elif "passing" in message:
            progress.passing(str(message["passing"]))
        else:
            progress.show(values.to_index_event(message))
    raise _unanswered()


def decide(settings: Settings, folder: Path, *, keep: bool, progress: Display) -> tuple[int, int]:
    """Keep or remove documents whose files are gone; return how many it concerns and how many were removed."""
    answer = _answer(settings, {"do": "deletions", "folder": str(folder), "keep": keep}, progress)
    return int(str(answer["documents"])), int(str(answer["removed"]))


def purge(
    settings: Settings, folder: Path, *, check: bool, keep_caches: bool = False, progress: Display | None = None
) -> tuple[PurgeReport, bool]:
    """Forget a folder; also return whether the other process leaves it out from now on.

    With `keep_caches`, its chunk KV stays as long as that of deleted files does.
    """
    from desk_rag.store.types import PurgeReport

    request = {"do": "purge", "folder": str(folder), "check": check, "keep_caches": keep_caches}
    answer = _answer(settings, request, progress)
    report: PurgeReport = values.built(PurgeReport, answer["report"])
    return report, bool(answer["left_out"])


def repair(
    settings: Settings, subset: tuple[int, int] | None, progress: Display
) -> tuple[VerifyReport, tuple[str, ...], str]:
    """Check the store and remove what is damaged; also return its notices and why its caches cannot be reached."""
    from desk_rag.store.types import VerifyReport

    answer = _answer(settings, {"do": "repair", "subset": None if subset is None else list(subset)}, progress)
    report: VerifyReport = values.built(VerifyReport, answer["report"])
    notices = answer["notices"]
    return report, tuple(map(str, notices)) if isinstance(notices, list) else (), str(answer["kv_away"])


def use_index_settings(settings: Settings, wanted: Sequence[Path] = (), excluded: Sequence[Path] = ()) -> bool:
    """Have folders looked through by these settings, now and from then on, with `wanted` if it was left out.

    Documents at and below `excluded`, which the settings leave out, are removed at once. Returns whether the other
    process indexes what is wanted.
    """
    paths = {"folders": [str(path) for path in wanted], "excluded": [str(path) for path in excluded]}
    request = {"do": "index_settings", **paths}
    return bool(_answer(settings, request | {"index": settings.index.model_dump(mode="json")}, None)["obeyed"])


def _answer(settings: Settings, request: Message, progress: Display | None) -> Message:
    answer = next(iter([*_messages(settings, request, progress, lambda: False)]), None)
    if answer is None:
        raise _unanswered()
    return answer


def _messages(
    settings: Settings, request: Message, progress: Display | None, stop: Callable[[], bool]
) -> Iterator[Message]:
    messages = client.request(settings.data_dir, request, stop)
    if next(messages, {}).get("waits") and progress is not None:
        progress.passing(_STEP)
    yield from messages
    if progress is not None:
        progress.clear()


def _unanswered() -> StoreError:
    return StoreError("The desk-rag that is running ended before this was done.", remedy="Try again.")
