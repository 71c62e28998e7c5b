"""Protocol between the UI and the rest of desk-rag, and the values that cross it.

Imports no torch and no store, so that the screen can be drawn first. `tui.live_backend` implements it. Every method may
be slow, so the app calls them in thread workers only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from desk_rag.answering.events import AnswerEvent, AnswerMode
from desk_rag.documents.chunking import Chunk
from desk_rag.documents.status import IndexStage
from desk_rag.indexer.resident.facts import Started as Started
from desk_rag.ingest.events import IndexEvent
from desk_rag.ingest.freshness import Backlog

if TYPE_CHECKING:
    from desk_rag.answering.conversation.saved import Change
    from desk_rag.answering.conversation.scope import Names
    from desk_rag.answering.conversation.turns import Turn
    from desk_rag.store.chats.records import SavedSource
    from desk_rag.tui.conversation.keeper import Keeper
    from desk_rag.tui.management.session import Session
    from desk_rag.tui.turns.together import Answering


class Freshness(Enum):
    """State of the index beside the folders it follows."""

    STARTING = "starting"
    WATCHING = "watching"
    INDEXING = "indexing"
    PAUSED = "paused"
    UNATTENDED = "not watching"
    """No process indexes: the writer has ended, and this process has not yet taken over."""


@dataclass(frozen=True, slots=True)
class Status:
    """State of the index at one moment, as the status bar shows it."""

    freshness: Freshness = Freshness.STARTING
    files: int = 0
    failed: int = 0
    chunks: int = 0
    with_vectors: int = 0
    warm: int = 0
    auxiliary_warm: int | None = None
    """Chunks with a cache of the auxiliary model; None if there is no such model."""
    kv_bytes: int = 0
    budget_bytes: int = 0
    stage: IndexStage | None = None
    """The stage at work; None while there is nothing to do."""
    done: int = 0
    total: int = 0
    eta_seconds: float | None = None
    """None while unknown."""
    waiting: str = ""
    """Reason for which the stage waits; empty while it works."""
    paused_seconds: float | None = None
    """How long the pause still lasts; None when not paused, or paused without an end."""
    absent: tuple[Path, ...] = ()
    """Indexed folders and drives that are not there now; their documents still answer."""
    missing: int = 0
    """Documents whose files are gone and that leave the index when the grace period is over."""
    missing_seconds: float = 0.0
    """Seconds until the first of them leave."""
    gone_and_kept: int = 0
    """Documents whose files are gone and that stay in the index, as the user has decided."""
    writer: int = 0
    """Process id of another process that indexes; 0 if there is none."""
    is_reading: bool = False
    """True while the folders are being looked through or files are being read, or will be within seconds."""
    no_caches: str = ""
    """Why caches cannot be kept or read now, and what follows; empty if they can."""

    @property
    def fills_auxiliary(self) -> bool:
        """Return whether, of all caches, only those of the auxiliary model are still to be made."""
        return self.auxiliary_warm is not None and 0 < self.chunks <= self.warm and self.auxiliary_warm < self.chunks


class Wanted(NamedTuple):
    """A question of the chat on the screen."""

    turn: int
    question: str


class Backend(Protocol):
    """Everything the UI asks of desk-rag. Methods raise DeskRagError with a message and a remedy."""

    @property
    def session(self) -> Session:
        """Settings, folders and store, for the screens beside the chat; usable before `start`."""

    def start(self, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> Started:
        """Import, load and open everything; `report` takes progress lines, `listen` index events from any thread."""

    def has_ended(self) -> bool:
        """Return whether what `start` has opened has ended by itself, so that another start is due."""

    @property
    def keeper(self) -> Keeper:
        """Saved chats."""

    def ask(
        self,
        question: str,
        stop: Callable[[], bool],
        mode: AnswerMode = AnswerMode.CACHED,
        *,
        wait: Callable[[], bool] = lambda: True,
        turn: int | None = None,
        earlier: Sequence[Turn] = (),
    ) -> Iterator[AnswerEvent]:
        """Answer `question`, which may lean on `earlier` turns; gives up soon after `stop()` turns true.

        While new files are being read, FilesWaiting events come until they are read or `wait()` turns false. The answer
        is saved as that of `turn`; None saves nothing. '/words' lists passages instead.
        """

    def ask_all(
        self, wanted: Sequence[Wanted], stop: Callable[[], bool], *, wait: Callable[[], bool], earlier: Sequence[Turn]
    ) -> Generator[Answering, None, None]:
        """Answer the first question, and as many behind it as are answered together with it, each as `ask` does.

        Read the events of one answer before going on to the next; whatever is not read is not saved.
        """

    def names(self) -> Names:
        """Return the folders and files that '@' can name."""

    def change_of(self, source: SavedSource) -> Change:
        """Return what has happened to the file of a saved source since."""

    def backlog(self) -> Backlog:
        """Return the files that were not read yet; once those are that an answer lacked, it can be renewed."""

    def prefetch(self, question: str) -> None:
        """Get ready for `question`, which is likely to be asked next; it may also never be."""

    def status(self) -> Status:
        """Return counts and progress as they are now."""

    def document(self, path: Path) -> Sequence[Chunk]:
        """Return all chunks of one document in order; empty if it is no longer in the index."""

    def pause(self, seconds: float | None) -> None:
        """Stop background work for `seconds`; None lets it go on."""

    def decide_deletions(self, *, keep: bool) -> int:
        """Keep the documents whose files are gone, or remove them from the index; return how many there are."""

    def stop(self) -> bool:
        """End background work and let go of the store; False if a step that cannot be interrupted still runs.

        Safe to call twice and before `start`."""
