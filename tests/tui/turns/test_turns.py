"""The way of a turn: waiting for files, first word, comparing, asking again, withdrawing; and what is done with one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering.events import (
    AnswerEvent,
    AnswerMode,
    AnswerText,
    AskedAs,
    CheckedSentence,
    Evidence,
    FilesWaiting,
    Finished,
    FirstToken,
    Retrieved,
    Support,
)
from desk_rag.documents.chunking import Location
from desk_rag.documents.status import IndexStage
from desk_rag.ingest.freshness import Backlog
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.backend import Freshness, Started, Status
from desk_rag.tui.screens.document_text import DocumentTextScreen
from desk_rag.tui.screens.turn.menu import TurnMenu
from desk_rag.tui.widgets.answer_view import AnswerView
from desk_rag.tui.widgets.question_input import QuestionInput
from tests.tui.conftest import Run, ask, screen_text, text_of, until
from tests.tui.scripted import CLOCK, DOCUMENT, FOLDERS, QUOTE, SOURCES, WATCHING, ScriptedBackend, answer, chunk, play

Q = "when does the boiler warranty end?"
NOT_FOUND = "I could not find that in the documents."
READING = replace(WATCHING, freshness=Freshness.INDEXING, stage=IndexStage.WORDS, files=18, failed=0, is_reading=True)
NEW = tuple(FOLDERS[0] / f"new {number}.md" for number in range(22))


def over(app: DeskRagApp, turns: int = 1) -> bool:
    views = list(app._chat.query(AnswerView))
    return len(views) == turns and all(view.over for view in views)


# Waiting for files ------------------------------------------------------------------------------------------


class Filling(ScriptedBackend):
    """Waits for files as `indexer.fresh_answer` does, and says in the answer which were missing."""

    left = Backlog(18, NEW)

    def backlog(self) -> Backlog:
        return self.left

    def ask(self, question, stop, mode=AnswerMode.CACHED, *, wait=lambda: True, **known):  # type: ignore[no-untyped-def]
        while (self.left.new or not self.left.complete) and wait() and not stop():
            yield FilesWaiting(self.left)
            time.sleep(0.1)
        lacks = self.left if self.left.new else None
        for event in super().ask(question, stop, mode, **known):
            if isinstance(event, Finished) and lacks is not None:
                event = Finished(replace(event.answer, backlog=lacks, notices=lacks.notices))
            yield event

    def read_all(self) -> None:
        """Read what is left, as the status then says."""
        self.left, self.now = Backlog(40), WATCHING


async def test_a_question_waits_for_files_and_is_asked_when_they_are_read(running: Run) -> None:
    backend = Filling(now=READING)
    backend.left = Backlog(0, complete=False)
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: text_of(app, ".note") == "waits: the folders are being looked through")
        backend.left = Backlog(0, NEW)
        await until(pilot, lambda: text_of(app, ".note") == "waits for files: 0 of 22 files read")
        backend.left = Backlog(18, NEW)
        expected = "waits for files: 18 of 40 files read · Enter answers from those"
        await until(pilot, lambda: text_of(app, ".note") == expected)
        assert backend.asked == [], "nothing is answered from files that were not read"
        backend.read_all()
        await until(pilot, lambda: over(app))
        assert backend.asked == [(Q, AnswerMode.CACHED)]
        assert "From" not in text_of(app, ".note")


async def test_enter_answers_from_some_files_and_says_from_how_many(running: Run) -> None:
    backend = Filling(now=READING)
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: "waits for files: 18 of 40 files read" in text_of(app, ".note"))
        await pilot.press("enter")
        await until(pilot, lambda: over(app))
        said = "! From 18 of 40 files; 22 are not read yet"
        assert text_of(app, ".note") == said
        backend.read_all()
        hint = f"! all files are read now: Alt+R asks again\n{said}"
        await until(pilot, lambda: text_of(app, ".note") == hint)
        assert len(backend.asked) == 1, "an answer that was found stays until it is asked again"
        await pilot.press("alt+r")
        await until(pilot, lambda: len(backend.asked) == 2 and over(app))
        assert text_of(app, ".note") == "" and "14 March 2028" in text_of(app, ".words")


async def test_what_was_not_found_in_some_files_is_asked_again_by_itself(running: Run) -> None:
    class Growing(Filling):
        def _events(self, question, stop, mode, earlier) -> Iterator[AnswerEvent]:  # type: ignore[no-untyped-def]
            if not self.left.new:
                return super()._events(question, stop, mode, earlier)
            self.asked.append((question, mode))
            return iter(play(answer(question, NOT_FOUND, found=False)))

    backend = Growing(now=READING)
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: "waits for files" in text_of(app, ".note"))
        await pilot.press("enter")
        await until(pilot, lambda: over(app))
        assert text_of(app, ".words") == NOT_FOUND and "From 18 of 40 files" in text_of(app, ".note")
        backend.now = WATCHING
        await until(pilot, lambda: "watching" in text_of(app, "#status"))
        await pilot.pause(0.1)
        assert len(backend.asked) == 1, "the files that it lacked are not read yet"
        backend.read_all()
        backend.now = replace(WATCHING, files=40)
        await until(pilot, lambda: len(backend.asked) == 2 and over(app))
        assert "14 March 2028" in text_of(app, ".words") and QUOTE.quote in text_of(app, ".quote")
        assert not app._chat.query_one(AnswerView).has_class("-not-found")


async def test_a_question_that_waits_for_files_is_withdrawn_to_the_prompt(running: Run) -> None:
    backend = Filling(now=READING)
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: "waits for files" in text_of(app, ".note"))
        await pilot.press("escape")
        await until(pilot, lambda: not app._chat.query(AnswerView))
        assert app.screen.query_one(QuestionInput).text == Q
        backend.read_all()
        await pilot.press("enter")
        await until(pilot, lambda: over(app) and "14 March 2028" in text_of(app, ".words"))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status(Freshness.WATCHING), "Documents holds no file that desk-rag reads."),
        (Status(Freshness.WATCHING, failed=2), "Nothing in Documents could be read (2 files could not be read)."),
        (Status(Freshness.WATCHING, absent=FOLDERS), "The folder is not there now, and nothing of it was read before."),
        (Status(Freshness.PAUSED), "Nothing has been read yet, and indexing is paused."),
    ],
)
async def test_no_question_is_refused_about_no_documents(running: Run, status: Status, said: str) -> None:
    backend = ScriptedBackend(now=status)
    async with running(backend) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        assert text_of(pilot.app, ".note").splitlines()[0] == said
        assert backend.asked == []


async def test_what_no_passage_says_and_what_was_searched_stand_at_the_answer(running: Run) -> None:
    text = "It ends in 2028. It is free."
    checked = CheckedSentence(17, 28, Support.UNSUPPORTED, "no passage names a price")
    asked_as = "boiler [b]warranty[/b]"
    final = replace(answer(Q, text), sentences=(checked,), support=0.1, asked_as=asked_as)
    async with running(ScriptedBackend({Q: [AskedAs(asked_as), *play(final)]})) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        assert "no passage names a price" in text_of(app, ".note")
        assert "! The quote may not answer the question" in text_of(app, ".note")
        assert text_of(app, ".asked-as") == f"↳ asked as: {asked_as}"


# Times ------------------------------------------------------------------------------------------------------


async def test_first_word_is_the_time_until_a_word_is_on_the_screen(running: Run) -> None:
    gate, final = threading.Event(), answer(Q, "Done.")
    steps = [Retrieved(SOURCES), FirstToken(final.timings), gate, AnswerText("Done."), Finished(final)]
    async with running(ScriptedBackend({Q: steps})) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: text_of(app, ".note") == "writing the answer …")
        assert text_of(app, "TimingLine") == "", "no word is there yet"
        CLOCK.now += 1.5
        gate.set()
        await until(pilot, lambda: over(app))
        await until(pilot, lambda: text_of(app, "TimingLine").startswith("first word after 1.7 s · "))


async def test_a_quote_counts_as_the_first_word(running: Run) -> None:
    gate, final = threading.Event(), answer(Q, "Done.", citations=(QUOTE,))
    steps = [Retrieved(SOURCES), FirstToken(final.timings), Evidence(QUOTE), gate, AnswerText("Done."), Finished(final)]
    async with running(ScriptedBackend({Q: steps})) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: text_of(app, "TimingLine") == "first word after 0.19 s")
        CLOCK.now += 5
        gate.set()
        await until(pilot, lambda: over(app))
        assert text_of(app, "TimingLine").startswith("first word after 0.19 s · ")


async def test_comparing_runs_both_ways_afresh_in_one_turn(running: Run) -> None:
    backend = ScriptedBackend()
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await pilot.press("f7")
        await until(pilot, lambda: bool(app._chat.query("ComparisonView")) and over(app))
        cached, full = AnswerMode.CACHED, AnswerMode.FULL
        assert [mode for _, mode in backend.asked] == [cached, *[cached] * 3, full], "cold chunks: tried again"
        lines = text_of(app, ".bars").splitlines()
        assert lines[1].startswith("from caches") and lines[1].endswith("0.19 s")
        assert lines[2].startswith("full prefill") and lines[2].endswith("4.31 s  23 times")
        assert lines[3] == "Both give the same words and quotes."
        assert lines[4].startswith("! 1 of 4 chunks had no cache; the time from caches")
        assert text_of(app, ".one").count("14 March 2028") == 2, "both answers stand side by side"
        assert "14 March 2028" in text_of(app, ".words") and len(app._chat.query(AnswerView)) == 1


async def test_comparing_says_when_the_words_differ(running: Run) -> None:
    warm = tuple(replace(source, warm=True) for source in SOURCES)
    other = answer(Q, "In May.", sources=warm)
    backend = ScriptedBackend({Q: play(other)})
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await pilot.press("f7")
        await until(pilot, lambda: bool(app._chat.query("ComparisonView")) and over(app))
        assert len(backend.asked) == 3, "all chunks were warm at once"
        assert "! The words differ." in text_of(app, ".bars") and "no cache" not in text_of(app, ".bars")
        assert "In May." in text_of(app, ".one") and "14 March 2028" in text_of(app, ".one")


async def test_comparing_is_not_offered_without_sources(running: Run) -> None:
    final = answer(Q, NOT_FOUND, sources=(), found=False)
    backend = ScriptedBackend({Q: play(final)})
    async with running(backend) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        await pilot.press("f7", "alt+m")
        assert isinstance(pilot.app.screen, TurnMenu)
        assert "Compare" not in screen_text(pilot.app) and "Ask again" in screen_text(pilot.app)
        assert len(backend.asked) == 1


async def test_a_comparison_can_be_stopped(running: Run) -> None:
    gate = threading.Event()

    class Slow(ScriptedBackend):
        def _events(self, question, stop, mode, earlier) -> Iterator[AnswerEvent]:  # type: ignore[no-untyped-def]
            if mode is AnswerMode.FULL:
                while not stop():
                    gate.wait(0.01)
            yield from super()._events(question, stop, mode, earlier)

    async with running(Slow()) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await pilot.press("f7")
        await until(pilot, lambda: "for full prefill" in text_of(app, ".note"))
        await pilot.press("escape")
        await until(pilot, lambda: over(app))
        assert not app._chat.query("ComparisonView") and "14 March 2028" in text_of(app, ".words")


# Doing something with a turn --------------------------------------------------------------------------------


async def test_a_queued_question_is_withdrawn_to_the_prompt(running: Run) -> None:
    gate = threading.Event()
    backend = ScriptedBackend({"first": [Retrieved(SOURCES), gate, *play(answer("first", "One."))[1:]]})
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, "first")
        await ask(pilot, "second")
        await until(pilot, lambda: "waits for the answer above" in text_of(app, ".note"))
        await pilot.press("alt+down", "escape")
        await until(pilot, lambda: len(app._chat.query(AnswerView)) == 1)
        assert app.screen.query_one(QuestionInput).text == "second"
        gate.set()
        await until(pilot, lambda: over(app))
        assert [question for question, _ in backend.asked] == ["first"]


async def test_a_question_is_withdrawn_while_the_model_loads(running: Run) -> None:
    gate = threading.Event()
    backend = ScriptedBackend(start_gate=gate)
    async with running(backend, ready=False) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: "waits for the model" in text_of(app, ".note"))
        app._chat.query_one("#transcript").focus()
        await pilot.press("delete")
        await until(pilot, lambda: not app._chat.query(AnswerView))
        assert bool(app._chat.query("#welcome"))
        gate.set()
        await until(pilot, lambda: "·" in text_of(app, "#model"))
        assert backend.asked == []


async def test_a_stopped_turn_is_asked_again_in_its_place(running: Run) -> None:
    backend = ScriptedBackend({Q: [Retrieved(SOURCES), threading.Event()]})
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: "reading 4 chunks" in text_of(app, ".note"))
        await pilot.press("escape")
        await until(pilot, lambda: over(app))
        assert text_of(app, ".note") == "stopped" and text_of(app, "TimingLine") == ""
        backend.script.clear()
        await pilot.press("alt+r")
        await until(pilot, lambda: over(app) and "14 March 2028" in text_of(app, ".words"))
        assert text_of(app, ".note") == "" and not app._chat.query_one(AnswerView).has_class("-stopped")


async def test_the_menu_does_what_its_entry_says(running: Run) -> None:
    backend = ScriptedBackend()
    async with running(backend, size=(118, 40)) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        app._chat.query_one("#transcript").focus()
        await pilot.press("enter")
        shown = screen_text(app)
        assert isinstance(app.screen, TurnMenu) and Q in shown
        for title in ("Ask again", "Edit the question", "Copy the quotes", "Read the source here", "Delete this turn"):
            assert title in shown
        assert "Withdraw" not in shown and "Stop the answer" not in shown
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.screen is app._chat)
        assert app.screen.query_one(QuestionInput).text == Q, "the second entry edits the question"


@pytest.mark.parametrize(
    ("action", "copied"),
    [
        ("copy_words", "The warranty ends on 14 March 2028 [1], if a yearly inspection is logged [1][2]."),
        ("copy_quotes", f'[1] "{QUOTE.quote}" (house/boiler-contract.pdf, p. 4)'),
    ],
)
async def test_parts_of_an_answer_are_copied(running: Run, action: str, copied: str) -> None:
    async with running(ScriptedBackend()) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        await pilot.app._chat.run_action(action)
        assert pilot.app.clipboard == copied


async def test_a_turn_is_deleted_from_the_transcript(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        app = pilot.app
        for turns, question in enumerate(("one", "two"), 1):
            await ask(pilot, question)
            await until(pilot, lambda turns=turns: over(app, turns))
        await app._chat.run_action("delete")
        await until(pilot, lambda: over(app, 1))
        assert text_of(app, ".question") == "one" and app._chat._selected is not None
        await ask(pilot, "three")
        await until(pilot, lambda: over(app, 2))


async def test_a_number_in_the_answer_shows_its_source(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        words = app._chat.query_one(".words Static")
        column = "The warranty ends on 14 March 2028 [1], if a yearly inspection is logged [1][2].".index("[2]") + 1
        width = words.content_size.width
        text = str(words.visual)
        row, line_start = 0, 0
        while column - line_start >= width:
            line_start = text.rfind(" ", line_start, line_start + width) + 1
            row += 1
        await pilot.click(words, offset=(column - line_start, row))
        await until(pilot, lambda: text_of(app, "#preview-title").startswith("2 mail/"))


async def test_markdown_is_rendered_and_opens_nothing(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(DeskRagApp, "open_url", lambda self, url, **_: opened.append(url))
    text = "# Head\n\n- **bold** item [2]\n- [a link](http://evil.example) [9]\n\n\x1b[31mred\x1b[0m"
    backend = ScriptedBackend({Q: play(answer(Q, text), [text[at : at + 5] for at in range(0, len(text), 5)])})
    backend.started = Started("Qwen", "CPU", markdown=True)
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await until(pilot, lambda: "• bold item [2]" in screen_text(app) and "a link [9]" in screen_text(app))
        assert "**" not in screen_text(app) and "# Head" not in screen_text(app) and "red" in screen_text(app)
        view = app._chat.query_one("Markdown")
        from textual.widgets import Markdown

        assert isinstance(view, Markdown)
        view.post_message(Markdown.LinkClicked(view, "http://evil.example"))
        await until(pilot, lambda: "Links are not opened" in " ".join(one.message for one in app._notifications))
        view.post_message(Markdown.LinkClicked(view, "source:2"))
        await until(pilot, lambda: text_of(app, "#preview-title").startswith("2 mail/"))
        assert opened == []


async def test_the_source_is_read_inside_at_the_quote(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await pilot.press("alt+v")
        await until(pilot, lambda: isinstance(app.screen, DocumentTextScreen) and "4.3 Claims" in screen_text(app))
        await pilot.press("alt+c")
        await until(pilot, lambda: app.clipboard == QUOTE.quote)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app._chat)


async def test_a_quote_far_down_in_a_long_document_is_in_view(running: Run) -> None:
    long = [
        chunk(number, f"{number} Paragraph. " + "Words that fill the lines. " * 20, Location())
        for number in range(1_000, 1_040)
    ]
    backend = ScriptedBackend(chunks=[*long, *DOCUMENT, *long])
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await pilot.press("alt+v")
        await until(pilot, lambda: "4.2 Term. The warranty period is five years" in screen_text(app))


async def test_a_pdf_is_shown_as_text_where_no_program_opens_it(
    running: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDITOR", "vim")
    file = tmp_path / "contract.pdf"
    file.write_bytes(b"%PDF-1.7")
    file.chmod(0o755)
    sources = (replace(SOURCES[0], path=file), *SOURCES[1:])
    final = answer(Q, "Yes.", sources=sources, citations=(replace(QUOTE, path=file),))
    async with running(ScriptedBackend({Q: play(final)})) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, DocumentTextScreen) and "4.2 Term" in screen_text(app))
        assert "p. 4" in screen_text(app)


async def test_a_source_is_opened_at_the_quoted_line(
    running: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "house.md"
    file.write_text("text")
    source = replace(SOURCES[2], path=file)
    quote = replace(QUOTE, source_number=3, path=file, location=replace(source.location, line_start=97, line_end=97))
    final = answer(Q, "Yes.", sources=(*SOURCES[:2], source), citations=(quote,))
    started: list[tuple[str, ...]] = []
    monkeypatch.setenv("VISUAL", "code")
    monkeypatch.setattr("desk_rag.tui.source_opening.subprocess.Popen", lambda argv, **kwargs: started.append(argv))
    async with running(ScriptedBackend({Q: play(final)})) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        await pilot.press("ctrl+o")
        await until(pilot, lambda: started == [("code", "--goto", f"{file}:97")])


async def test_the_side_pane_is_away_without_sources(running: Run) -> None:
    final = answer("none", NOT_FOUND, sources=(), found=False)
    async with running(ScriptedBackend({"none": play(final)})) as pilot:
        app = pilot.app
        await ask(pilot, "none")
        await until(pilot, lambda: over(app))
        assert not app._chat.query_one("#side").display and "^o Open" not in screen_text(app)
        await ask(pilot, Q)
        await until(pilot, lambda: over(app, 2))
        assert app._chat.query_one("#side").display and "^o Open" in screen_text(app)
        await pilot.press("alt+up")
        await until(pilot, lambda: not app._chat.query_one("#side").display)
