"""The chat screen: what a person sees and can do, played against a scripted backend."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from textual.widgets import Static

from desk_rag.answering.events import READ_BY_WORDS, AnswerMode, AnswerText, Evidence, Finished, FirstToken, Retrieved
from desk_rag.documents.status import IndexStage
from desk_rag.errors import Cancelled, ConfigError, ModelNotFound, StoreError
from desk_rag.ingest.events import RootAbsent, StageProgress
from desk_rag.ingest.unread import UnreadFiles
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.panels.choice import ChoiceScreen
from desk_rag.tui.screens.document_text import DocumentTextScreen
from desk_rag.tui.widgets.answer_view import AnswerView
from desk_rag.tui.widgets.question_input import QuestionInput
from desk_rag.tui.widgets.source_list import SourceList
from desk_rag.tui.wording import as_text
from tests.tui.conftest import Run, ask, screen_text, text_of, until
from tests.tui.scripted import (
    FOLDERS,
    QUOTE,
    SOURCES,
    WARMING,
    WATCHING,
    ScriptedBackend,
    answer,
    play,
)

Q = "when does the boiler warranty end?"


def over(app: DeskRagApp, turns: int = 1) -> bool:
    views = list(app._chat.query(AnswerView))
    return len(views) == turns and all(view.over for view in views)


async def test_answer_shows_quote_text_and_timing(running: Run) -> None:
    backend = ScriptedBackend()
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        assert backend.asked == [(Q, AnswerMode.CACHED)]
        assert Q in text_of(app, ".question")
        assert QUOTE.quote in text_of(app, ".quote")
        assert "[1] house/boiler-contract.pdf · p. 4" in text_of(app, ".quote")
        assert text_of(app, ".words").startswith("The warranty ends on 14 March 2028 [1]")
        line = "first word after 0.19 s · 3 of 4 passages read ahead of time · quotes from 1"
        assert text_of(app, "TimingLine") == line
        assert isinstance(app.focused, QuestionInput) and app.focused.text == ""


async def test_a_list_names_each_document_once(running: Run) -> None:
    text = "2 invoices that are not paid:\n[1] INV-1, “Status: open”: boiler.pdf p. 4\n[2] INV-2: mail.eml"
    final = replace(answer(Q, text, citations=(QUOTE, replace(QUOTE, source_number=2))), model=READ_BY_WORDS)
    assert final.is_list and not replace(final, model="other").is_list
    script = [event for event in play(final, [text]) if not isinstance(event, Evidence)]
    async with running(ScriptedBackend({Q: script})) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        view = app._chat.query_one(AnswerView)
        assert "[2] INV-2: mail.eml" in text_of(app, ".words") and not view.query(".quote")
        assert len(view.citations) == 2, "the source list marks them as cited"
        assert as_text(final, FOLDERS).count("[1]") == 1


async def test_the_share_that_was_recomputed_stands_below_the_answer(running: Run) -> None:
    plain = answer(Q, "Done.")
    final = replace(plain, timings=replace(plain.timings, recompute_ratio=0.2))
    async with running(ScriptedBackend({Q: play(final)})) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        line = "first word after 0.19 s · 3 of 4 passages read ahead of time · 20% recomputed"
        assert text_of(pilot.app, "TimingLine") == line


@pytest.mark.parametrize("warm", [False, True])
async def test_sources_come_before_the_first_token(running: Run, warm: bool) -> None:
    gate = threading.Event()
    final = answer(Q, "Done.")
    sources = tuple(replace(source, warm=source.warm or warm) for source in SOURCES)
    backend = ScriptedBackend(
        {Q: [Retrieved(sources), gate, FirstToken(final.timings), AnswerText("Done."), Finished(final)]}
    )
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: app._chat.query_one(SourceList).option_count == 4)
        assert f"reading 4 chunks, {4 if warm else 3} warm" in text_of(app, ".note")
        assert text_of(app, "TimingLine") == ""
        rows = screen_text(app)
        assert "1 ● house/boiler-contract.pdf" in rows and "p. 4" in rows
        assert "3 ◐ notes/house.md" in rows and "lines 88-102" in rows
        assert ("4 ● …/" if warm else "4 ○ …/") in rows
        gate.set()
        await until(pilot, lambda: over(app))
        assert text_of(app, ".words") == "Done."


async def test_preview_stands_in_its_document_and_steps(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: "4.3 Claims" in text_of(app, "#after"))
        assert "4.1 Scope" in text_of(app, "#before")
        assert "4.2 Term" in text_of(app, "#chunk") and "4.2 Term" not in text_of(app, "#after")
        assert text_of(app, "#preview-title") == "1 house/boiler-contract.pdf · p. 4\nTerms › 4 Warranty"
        await pilot.press("tab", "tab")
        await pilot.press("alt+n")
        await until(pilot, lambda: "2 mail/2023-installer.eml · lines 12-40" in text_of(app, "#preview-title"))
        assert text_of(app, "#before") == ""
        await pilot.press("alt+p", "alt+p")
        await until(pilot, lambda: text_of(app, "#preview-title").startswith("4 manuals/heating"))
        await pilot.press("alt+3")
        await until(pilot, lambda: text_of(app, "#preview-title").startswith("3 notes/house.md"))
        app._chat.query_one(SourceList).focus()
        await pilot.press("enter")
        assert app.focused is not None and app.focused.id == "preview-text"
        await pilot.press("escape")
        assert isinstance(app.focused, QuestionInput)


async def test_clicking_a_quote_shows_its_source(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await pilot.press("alt+2")
        await until(pilot, lambda: text_of(app, "#preview-title").startswith("2 "))
        await pilot.click(".quote")
        await until(pilot, lambda: text_of(app, "#preview-title").startswith("1 "))


async def test_escape_stops_the_stream_and_keeps_the_text(running: Run) -> None:
    final = answer(Q, "never")
    steps = [
        Retrieved(SOURCES),
        FirstToken(final.timings),
        AnswerText("The "),
        AnswerText("warranty"),
        threading.Event(),
        AnswerText("x"),
    ]
    backend = ScriptedBackend({Q: steps})
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: text_of(app, ".words") == "The warranty")
        assert "esc Stop" in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: over(app))
        assert text_of(app, ".words") == "The warranty"
        assert text_of(app, ".note") == "stopped"
        assert "esc Stop" not in screen_text(app)


async def test_a_stopped_answer_without_words_says_only_that(running: Run) -> None:
    final = replace(answer(Q, "", stopped=True), found=False)
    async with running(ScriptedBackend({Q: [Retrieved(SOURCES), FirstToken(final.timings), Finished(final)]})) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        assert text_of(pilot.app, ".note") == "stopped"
        assert text_of(pilot.app, ".words") == ""
        assert not pilot.app._chat.query_one(AnswerView).has_class("-not-found")


async def test_that_the_end_of_the_question_was_left_out_is_told(running: Run) -> None:
    final = replace(answer(Q, "Done."), question_cut_at=247)
    async with running(ScriptedBackend({Q: play(final)})) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        said = "! The question is longer than 247 tokens; its end was left out"
        assert text_of(pilot.app, ".note") == said


async def test_refusal_counts_the_files_that_were_not_read(running: Run) -> None:
    unread = UnreadFiles(13, (("images", 12), ("too large", 1)))
    final = replace(answer(Q, "I could not find that in the documents.", found=False, sources=()), not_read=unread)
    async with running(ScriptedBackend({Q: play(final)})) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        expected = "! 13 files not read: 12 images, 1 too large (the library lists them)"
        assert text_of(pilot.app, ".note") == expected


async def test_the_palettes_key_lies_over_no_other(running: Run) -> None:
    async with running(ScriptedBackend(), size=(40, 12)) as pilot:
        await until(pilot, lambda: "f1 Help " in screen_text(pilot.app) and "^p palette" in screen_text(pilot.app))
        assert "f3" not in screen_text(pilot.app), "keys that have no room beside it are left out whole"
        await pilot.resize_terminal(100, 24)
        await until(pilot, lambda: "^p palette" in screen_text(pilot.app) and "f6 Pause" in screen_text(pilot.app))


async def test_stop_before_any_token_says_stopped(running: Run) -> None:
    backend = ScriptedBackend({Q: [Retrieved(SOURCES), Cancelled("stopped")]})
    async with running(backend) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        assert text_of(pilot.app, ".note") == "stopped"


async def test_second_question_waits_its_turn(running: Run) -> None:
    gate = threading.Event()
    first = answer("first", "One.")
    backend = ScriptedBackend({"first": [Retrieved(SOURCES), gate, *play(first)[1:]]})
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, "first")
        await ask(pilot, "second")
        await until(pilot, lambda: "waits for the answer above" in text_of(app, ".note"))
        assert [question for question, _ in backend.asked] == ["first"]
        gate.set()
        await until(pilot, lambda: over(app, 2))
        assert [question for question, _ in backend.asked] == ["first", "second"]
        assert "One." in text_of(app, ".words")


async def test_the_question_in_line_is_announced_and_need_not_be_asked(running: Run) -> None:
    gate, second_gate = threading.Event(), threading.Event()
    first, second = answer("first", "One."), answer("second", "Two.")
    backend = ScriptedBackend({
        "first": [Retrieved(SOURCES), gate, *play(first)[1:]],
        "second": [Retrieved(SOURCES), second_gate, *play(second)[1:]],
    })  # fmt: skip
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, "first")
        await until(pilot, lambda: len(backend.asked) == 1)
        assert backend.expected == [], "nothing waits yet"
        await ask(pilot, "second")
        await until(pilot, lambda: backend.expected == ["second"])
        assert len(backend.asked) == 1 and not over(app)
        await ask(pilot, "third")
        await until(pilot, lambda: len(backend.expected) == 2)
        assert set(backend.expected) == {"second"}, "the next one, not the last"
        gate.set()
        await until(pilot, lambda: backend.expected[-1] == "third")
        await pilot.press("alt+down", "escape")
        await until(pilot, lambda: len(app._chat.query(AnswerView)) == 2)
        second_gate.set()
        await until(pilot, lambda: "Two." in text_of(app, ".words") and app._chat._answering is None)
        assert [question for question, _ in backend.asked] == ["first", "second"]
        await ask(pilot, "fourth")
        await until(pilot, lambda: len(backend.asked) == 3 and app._chat._answering is None)
        assert backend.asked[-1] == ("fourth", AnswerMode.CACHED) and backend.expected[-1] == "third"


async def test_a_backend_that_cannot_look_ahead_answers_all_the_same(running: Run) -> None:
    class Blind(ScriptedBackend):
        def prefetch(self, question: str) -> None:
            super().prefetch(question)
            raise StoreError("gone")

    gate = threading.Event()
    first = answer("first", "One.")
    backend = Blind({"first": [Retrieved(SOURCES), gate, *play(first)[1:]]})
    async with running(backend) as pilot:
        await ask(pilot, "first")
        await ask(pilot, "second")
        await until(pilot, lambda: backend.expected == ["second"])
        gate.set()
        await until(pilot, lambda: over(pilot.app, 2))
        assert [question for question, _ in backend.asked] == ["first", "second"]


async def test_question_while_loading_is_answered_later(running: Run) -> None:
    gate = threading.Event()
    backend = ScriptedBackend(start_gate=gate)
    async with running(backend, ready=False) as pilot:
        app = pilot.app
        await until(pilot, lambda: "loading the model …" in text_of(app, "#status"))
        await ask(pilot, Q)
        await until(pilot, lambda: "waits for the model to load" in text_of(app, ".note"))
        assert backend.asked == []
        gate.set()
        await until(pilot, lambda: over(app))
        assert "embedded reader · CPU" in text_of(app, "#model")
        assert "watching" in text_of(app, "#status")


async def test_question_while_indexing(running: Run) -> None:
    backend = ScriptedBackend(now=WARMING)
    async with running(backend) as pilot:
        app = pilot.app
        await until(pilot, lambda: "the GPU is busy" in text_of(app, "#status"))
        assert backend.listen is not None
        for done in range(500):
            backend.listen(StageProgress(IndexStage.WARM, done, 500, "chunks", 9.0, 3.0))
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        assert "14 March 2028" in text_of(app, ".words")


async def test_not_found_shows_nearest(running: Run) -> None:
    final = answer(Q, "I could not find that in the documents.", found=False)
    async with running(ScriptedBackend({Q: play(final)})) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        assert text_of(app, ".words") == "I could not find that in the documents."
        note = text_of(app, ".note")
        assert "[1] ● house/boiler-contract.pdf  p. 4" in note and "[3] ◐ notes/house.md" in note
        assert "[4]" not in note
        assert app._chat.query_one(AnswerView).has_class("-not-found")


async def test_unverified_quote_and_stale_source_are_said(running: Run) -> None:
    from dataclasses import replace

    stale = replace(QUOTE, source_number=3)
    final = answer(Q, "Yes.", citations=(stale,), dropped=("never written anywhere",))
    async with running(ScriptedBackend({Q: play(final)})) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        assert "! in no source, do not rely on it: never written anywhere" in text_of(app, ".note")
        assert "! [3] its file has changed since it was read" in text_of(app, ".note")
        assert "never written anywhere" not in text_of(app, ".quote")


async def test_error_in_an_answer_is_a_panel_and_the_next_question_works(running: Run) -> None:
    backend = ScriptedBackend(
        {"bad": [StoreError("The disk is gone.", remedy="Plug it in.")], "worse": [KeyError("x")]}
    )
    async with running(backend) as pilot:
        app = pilot.app
        await ask(pilot, "bad")
        await until(pilot, lambda: over(app))
        assert text_of(app, ".note") == "The disk is gone.\nPlug it in."
        await ask(pilot, "worse")
        await until(pilot, lambda: over(app, 2))
        assert "Something went wrong inside desk-rag (KeyError: 'x')" in text_of(app, ".note")
        assert "Traceback" not in screen_text(app)
        await ask(pilot, Q)
        await until(pilot, lambda: over(app, 3))
        assert "14 March 2028" in text_of(app, ".words")


async def test_failed_start_says_what_to_do(running: Run) -> None:
    error = ModelNotFound("No weights at /nowhere.", remedy="Name another model with --model.")
    backend = ScriptedBackend(start_error=error)
    async with running(backend, ready=False) as pilot:
        app = pilot.app
        await until(pilot, lambda: "could not start" in text_of(app, "#welcome"))
        assert "No weights at /nowhere." in text_of(app, "#welcome")
        assert "Name another model with --model." in text_of(app, "#welcome")
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        assert "Name another model with --model." in text_of(app, ".note")
        assert app.failure is error and "Enter tries again." in text_of(app, ".note")
        backend.start_error = None
        await pilot.press("enter")
        await until(pilot, lambda: over(app) and "14 March 2028" in text_of(app, ".words"))
        assert app.failure is None


async def test_pause_and_resume(running: Run) -> None:
    backend = ScriptedBackend()
    async with running(backend) as pilot:
        app = pilot.app
        await pilot.press("f6")
        await until(pilot, lambda: "paused, 1 h left" in text_of(app, "#status"))
        await pilot.press("f6")
        await until(pilot, lambda: "watching" in text_of(app, "#status"))
        assert backend.pauses == [3600.0, None]


async def test_absent_folder_is_said_while_it_is_absent(running: Run) -> None:
    backend = ScriptedBackend(now=replace(WATCHING, absent=(FOLDERS[0],)))
    async with running(backend) as pilot:
        assert backend.listen is not None
        said = "! Documents is not there now; nothing of it is removed"
        await until(pilot, lambda: said in text_of(pilot.app, "#status"))
        backend.listen(RootAbsent(FOLDERS[0], "the drive [b]is[/b] not connected"))
        shown = "/home/ada/Documents: the drive [b]is[/b] not connected"
        await until(pilot, lambda: shown in [one.message for one in pilot.app._notifications])
        backend.now = WATCHING
        await until(pilot, lambda: "watching" in text_of(pilot.app, "#status"))


async def test_the_footer_of_a_document_begins_with_the_way_back(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        pilot.app.push_screen(DocumentTextScreen("lease.md", "The rent is 1,150 euros."))
        await until(pilot, lambda: "Back" in screen_text(pilot.app).splitlines()[-1])
        await until(pilot, lambda: screen_text(pilot.app).splitlines()[-1].strip().startswith("esc Back"))


async def test_missing_files_are_said_and_can_be_kept_or_removed(running: Run) -> None:
    missing = replace(WATCHING, missing=60, missing_seconds=70 * 3600.0)
    backend = ScriptedBackend(now=missing)
    async with running(backend) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        await until(pilot, lambda: "! 60 files gone, kept 3 days more" in text_of(app, "#status"))
        commands = {command.title: command.callback for command in app.get_system_commands(app.screen)}
        assert "(^p: remove or keep)" in text_of(app, "#status")
        (decide,) = (commands[title] for title in commands if "remove or keep" in title.lower())
        decide()
        await until(pilot, lambda: isinstance(app.screen, ChoiceScreen))
        await pilot.press("k")
        await until(pilot, lambda: "60 documents kept in the index." in [one.message for one in app._notifications])
        await until(pilot, lambda: "gone" not in text_of(app, "#status"))
        backend.now = missing
        decide()
        await until(pilot, lambda: isinstance(app.screen, ChoiceScreen))
        await pilot.press("r")
        await until(pilot, lambda: backend.decisions == [True, False])


async def test_copy_answer_goes_to_the_clipboard_clean(running: Run) -> None:
    async with running(ScriptedBackend()) as pilot:
        app = pilot.app
        await ask(pilot, Q)
        await until(pilot, lambda: over(app))
        await pilot.press("alt+c")
        assert app.clipboard.startswith("The warranty ends on 14 March 2028")
        assert f'[1] "{QUOTE.quote}" (house/boiler-contract.pdf, p. 4)' in app.clipboard


async def test_only_numbers_of_retrieved_sources_become_chips(running: Run) -> None:
    """A model, or a document it quotes, may write any number in brackets."""
    final = answer(Q, "Yes [1], no [7], perhaps [12].")
    async with running(ScriptedBackend({Q: play(final)})) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        content = pilot.app._chat.query_one(AnswerView).query_one(".words Static", Static).visual
        assert {content.plain[span.start : span.end] for span in content.spans} == {"[1]"}


async def test_preview_goes_to_the_first_cited_source(running: Run) -> None:
    from dataclasses import replace

    citations = (replace(QUOTE, source_number=3, path=SOURCES[2].path), replace(QUOTE, source_number=2))
    async with running(ScriptedBackend({Q: play(answer(Q, "Yes.", citations=citations))})) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        assert text_of(pilot.app, "#preview-title").startswith("3 notes/house.md")


async def test_preview_leaves_out_a_title_line_that_repeats_the_heading(running: Run) -> None:
    from dataclasses import replace

    titled = replace(SOURCES[0], text=f"{SOURCES[0].location.heading}\nThe body.")
    async with running(ScriptedBackend({Q: play(answer(Q, "Yes.", sources=(titled,)))})) as pilot:
        await ask(pilot, Q)
        await until(pilot, lambda: over(pilot.app))
        assert text_of(pilot.app, "#chunk") == "The body."


async def test_what_was_typed_is_not_logged_where_a_name_is_unknown(
    running: Run, caplog: pytest.LogCaptureFixture
) -> None:
    backend = ScriptedBackend({"what about @sofia?": [ConfigError("No indexed folder or file is called sofia.")]})
    async with running(backend) as pilot:
        await ask(pilot, "what about @sofia?")
        await until(pilot, lambda: "is called sofia" in screen_text(pilot.app))
    assert "an answer failed: ConfigError" in caplog.text and "sofia" not in caplog.text
