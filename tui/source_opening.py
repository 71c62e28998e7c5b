"""Open a source in the user's program, or show its text inside; and say what went wrong."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from textual import on, work
from textual.app import App, SuspendNotSupported

from desk_rag.documents.chunking import Chunk
from desk_rag.errors import DeskRagError
from desk_rag.sanitize import home_path
from desk_rag.tui import messages as m
from desk_rag.tui.backend import Backend
from desk_rag.tui.opener import Opening, check_installed, opening
from desk_rag.tui.wording import place, safe

_LOG = logging.getLogger(__name__)


class SourceOpening(App[int]):
    """Base of the app: what is done with a source."""

    backend: Backend

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Give the terminal to another program, and take it back even if the block raises."""
        failure: Exception | None = None
        with super().suspend():
            try:
                yield
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    @on(m.OpenWanted)
    def _open_wanted(self, message: m.OpenWanted) -> None:
        self.open_source(message)

    @on(m.TextWanted)
    def _text_wanted(self, message: m.TextWanted) -> None:
        self.read_text(message)

    @work(thread=True, exclusive=True, group="open", exit_on_error=False)
    def open_source(self, wanted: m.OpenWanted) -> None:
        """Open a source at its place; inside, if there is no program for it."""
        try:
            how = opening(wanted.source.path, wanted.location, os.environ)
        except (DeskRagError, OSError, ValueError) as error:
            self.call_from_thread(self.complain, error)
            return
        if how is not None:
            self.call_from_thread(self._open, how)
            return
        said = "No program opens this file here, so its text is shown as desk-rag read it."
        self.call_from_thread(self.notify, said, markup=False)
        self._show_text(m.TextWanted(wanted.source, wanted.quote))

    @work(thread=True, exclusive=True, group="text", exit_on_error=False)
    def read_text(self, wanted: m.TextWanted) -> None:
        """Show the text of a document inside."""
        self._show_text(wanted)

    def complain(self, error: Exception) -> None:
        """Show an error for a while."""
        problem = m.Problem.of(error) if isinstance(error, DeskRagError) else m.Problem(str(error))
        said = safe(f"{problem.message} {problem.remedy}", single_line=True).plain
        self.notify(said, severity="error", timeout=8, markup=False)

    def _open(self, how: Opening) -> None:
        try:
            if how.in_terminal:
                check_installed(how.argv[0])
                with self.suspend():
                    subprocess.run(how.argv, check=False)
            else:
                nowhere = subprocess.DEVNULL
                subprocess.Popen(how.argv, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
        except (DeskRagError, OSError, SuspendNotSupported, ValueError) as error:
            self.complain(error)

    def _show_text(self, wanted: m.TextWanted) -> None:
        from desk_rag.tui.screens.document_text import DocumentTextScreen, excerpt

        source = wanted.source
        chunks: Sequence[Chunk] = ()
        try:
            chunks = self.backend.document(source.path)
        except Exception:
            _LOG.exception("only the source itself can be shown")
        title = f"{home_path(source.path)} · {place(source)}".rstrip(" ·")
        self.call_from_thread(self.push_screen, DocumentTextScreen(title, *excerpt(source, wanted.quote, chunks)))
