"""Show keys and signs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from desk_rag.tui.wording import safe

_KEYS = (
    ("Enter", "ask"),
    ("Ctrl+J", "new line in the question"),
    ("Up, Down", "earlier questions; in the transcript, the answer above or below"),
    ("Tab", "from the prompt to the transcript and the sources"),
    ("Esc", "stop the answer; otherwise back to the prompt"),
    ("Alt+1 … 9", "show source 1 … 9"),
    ("n, N", "next, previous source (outside the prompt)"),
    ("Enter", "in the list of sources: read on in the preview"),
    ("Ctrl+O", "open the shown source at its place"),
    ("y", "copy the answer with its quotes (outside the prompt)"),
    ("t", "stages of the time to first token (outside the prompt)"),
    ("F7", "answer again with full prefill and compare"),
    ("Ctrl+B", "sources: pane or tab"),
    ("F6", "pause indexing for an hour, or resume"),
    ("Ctrl+P", "every action by name"),
    ("Ctrl+Q", "quit; Ctrl+C twice does the same"),
)
_SIGNS = (
    ("●", "warm: the chunk's KV was on disk, so its text was not read again"),
    ("○", "cold: the chunk was prefilled live; a later answer finds it warm"),
    ("◐", "stale: the file has changed or gone since it was read"),
    ("[2]", "the quote stands word for word in source 2"),
    ("by process", "another process keeps the index fresh; this one does after it"),
    ("!", "needs your attention"),
)


class HelpScreen(ModalScreen[None]):
    """Closed by Esc, F1 or q."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "Close")]

    def __init__(self, log_file: Path | None) -> None:
        super().__init__()
        self._log_file = log_file

    def compose(self) -> ComposeResult:
        lines = [Content.styled("Keys", "bold"), *(_row(*pair) for pair in _KEYS), Content("")]
        lines += [Content.styled("Signs", "bold"), *(_row(*pair) for pair in _SIGNS)]
        if self._log_file is not None:
            lines += [Content(""), Content.assemble(("Log  ", "bold"), safe(str(self._log_file), single_line=True))]
        with VerticalScroll(id="help"):
            yield Static(Content("\n").join(lines), markup=False)


def _row(key: str, meaning: str) -> Content:
    return Content.assemble((f"  {key:<11}", "$accent"), meaning)
