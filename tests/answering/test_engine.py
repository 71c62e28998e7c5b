"""The path from question to answer on real files with the embedded reader: warm, cold, full, scoped, stopped."""

from __future__ import annotations

import io
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerMode, AnswerText, Evidence, Finished, FirstToken, Retrieved
from desk_rag.answering.opening import open_engine
from desk_rag.cli.output import AnswerPrinter, answer_json
from desk_rag.config import AnswerSettings, Settings
from desk_rag.errors import ConfigError
from desk_rag.ingest import pipeline
from desk_rag.store.store import Store

FILES = {
    "letter.md": "# Letter from the landlord\n\n## Rent\nThe rent for the flat in Mill Lane rises from 780 euros to "
    "815 euros on 1 September 2026. It is due on the third working day of every month.\n",
    "sub/bicycle.txt": "Notes on the bicycle\n\nThe frame number of the blue bicycle is WTU-4471-B. It was bought at "
    "Ortmann's on 3 May 2021 for 649 euros. The chain was changed in spring 2024.\n",
    "sub/trip.html": "<html><head><title>Trip to Porto</title></head><body><h1>Trip to Porto</h1><p>The train leaves "
    "at 6.52 from platform 11. The hotel is called Casa do Rio. Anna has the tickets.</p></body></html>",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(text)
    return tmp_path / "docs"


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose quality gate has run, so that each test need not run it again."""
    root = tmp_path_factory.mktemp("gated")
    open_engine(Settings(data_dir=root), writer=True).close()
    return root / "models"


@pytest.fixture
def engine(tmp_path: Path, folder: Path, gated: Path) -> Iterator[AnswerEngine]:
    settings = Settings(data_dir=tmp_path / "data", answer=AnswerSettings(max_new_tokens=60))
    shutil.copytree(gated, settings.data_dir / "models")
    opened = open_engine(settings, writer=True)
    index(opened, folder)
    yield opened
    opened.close()


def index(engine: AnswerEngine, folder: Path) -> None:
    prompt = engine.model.prompt
    for _ in pipeline.sync_folder(
        engine.store, folder, prompt, prompt.chunk_size, engine.settings.index, lambda: False
    ):
        pass
    for _ in pipeline.embed_pending(engine.store, engine.embedder, lambda: False):
        pass


def ask(engine: AnswerEngine, question: str, **options: object) -> Answer:
    events = list(engine.ask(question, **options))  # type: ignore[arg-type]
    assert isinstance(events[-1], Finished)
    return events[-1].answer


def test_events_come_in_order_and_say_the_same_as_the_answer(engine: AnswerEngine, folder: Path) -> None:
    events = list(engine.ask("When does the rent rise?"))
    kinds = [type(event) for event in events]
    assert kinds[:2] == [Retrieved, FirstToken]
    assert kinds[-1] is Finished
    answer = events[-1].answer
    assert "1 September 2026" in answer.text
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == answer.text
    assert tuple(event.citation for event in events if isinstance(event, Evidence)) == answer.citations
    assert answer.citations[0].path == folder / "letter.md"
    assert answer.citations[0].quote in FILES["letter.md"]
    assert answer.found
    assert answer.dropped_quotes == ()


def test_a_cold_chunk_is_prefilled_live_written_back_and_warm_the_next_time(engine: AnswerEngine) -> None:
    cold = ask(engine, "What is the frame number of the blue bicycle?")
    assert cold.cold_chunks == len(cold.sources) > 0
    assert "live prefill" in [stage.name for stage in cold.timings.stages]
    assert cold.timings.loaded_bytes == 0
    engine.settle()
    warm = ask(engine, "What is the frame number of the blue bicycle?")
    assert warm.cold_chunks == 0
    assert warm.warm_chunks == len(warm.sources)
    assert "live prefill" not in [stage.name for stage in warm.timings.stages]
    assert warm.timings.loaded_bytes > 0
    assert warm.raw == cold.raw
    assert "WTU-4471-B" in warm.text


def test_stages_sum_to_the_time_to_first_token(engine: AnswerEngine) -> None:
    timings = ask(engine, "Who has the tickets?").timings
    assert timings.ttft == pytest.approx(sum(stage.seconds for stage in timings.stages))
    assert {"retrieve", "load", "stitch", "prefill"} <= {stage.name for stage in timings.stages}


def test_full_prefill_goes_the_same_way_and_reads_the_same_chunks(engine: AnswerEngine) -> None:
    cached = ask(engine, "What is the frame number of the blue bicycle?")
    full = ask(engine, "What is the frame number of the blue bicycle?", mode=AnswerMode.FULL)
    assert [source.chunk_id for source in full.sources] == [source.chunk_id for source in cached.sources]
    assert full.timings.context_tokens == cached.timings.context_tokens
    assert "WTU-4471-B" in full.text
    assert "WTU-4471-B" in cached.text
    assert "load" not in [stage.name for stage in full.timings.stages]


def test_scope_limits_what_is_read(engine: AnswerEngine, folder: Path) -> None:
    answer = ask(engine, "When does the rent rise?", under=[folder / "sub"])
    assert {source.path.name for source in answer.sources} <= {"bicycle.txt", "trip.html"}
    assert "September" not in answer.text


def test_a_stop_keeps_the_partial_text(engine: AnswerEngine) -> None:
    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen >= 2

    answer = ask(engine, "When does the rent rise?", stop=stop)
    whole = ask(engine, "When does the rent rise?")
    assert answer.stopped and not whole.stopped
    assert answer.raw and whole.raw.startswith(answer.raw) and len(answer.raw) < len(whole.raw)
    assert not engine.turn.answer_waits()
    # A quote that had begun is neither the answer nor a quote that stands nowhere, and nothing is said to be missing.
    assert (answer.text, answer.dropped_quotes, answer.found) == ("", (), bool(answer.citations))


def test_of_a_question_that_is_too_long_the_end_is_left_out_and_that_is_told(engine: AnswerEngine) -> None:
    """Retrieval reads what the model reads: the words after that would cost seconds, and find what it never sees."""
    start = "What is the frame number of the blue bicycle? "
    words = []
    real = engine.embedder.encode_question
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.embedder, "encode_question", lambda text: (words.append(text), real(text))[1])
        answer = ask(engine, start + "When does the train leave? " * 2000)
    assert answer.question_cut_at > 200
    assert f"longer than {answer.question_cut_at} tokens; its end was left out" in answer.cut_notice
    assert words and all(text.startswith(start) and len(text) < 2000 for text in words)
    assert answer.question.startswith(start) and len(answer.question) > 50_000
    short = ask(engine, start)
    assert (short.question_cut_at, short.cut_notice) == (0, "")


def test_a_question_is_embedded_once_for_retrieval_and_the_judge(
    engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: dict[str, list[object]] = {}
    for name in ("encode_question", "embed_chunks"):
        seen, real = embedded.setdefault(name, []), getattr(engine.embedder, name)
        monkeypatch.setattr(engine.embedder, name, lambda x, seen=seen, real=real: (seen.append(x), real(x))[1])
    answer = ask(engine, "What is the frame number of the blue bicycle?")
    assert embedded["embed_chunks"] == [[answer.citations[0].quote]], "the judge did not read the evidence"
    assert embedded["encode_question"] == ["What is the frame number of the blue bicycle?"]


def test_a_context_smaller_than_a_chunk_is_a_wrong_setting(engine: AnswerEngine) -> None:
    settings = engine.settings.model_copy(update={"answer": AnswerSettings(context_tokens=10)})
    with pytest.raises(ConfigError, match="context_tokens = 10 under .answer. is less than the largest") as raised:
        open_engine(settings, writer=False)
    assert "280 or more" in raised.value.remedy


def test_passages_without_room_are_counted_with_the_reason(engine: AnswerEngine, folder: Path) -> None:
    """A model that reads too little for the nearest passages must not answer as if it had read them."""
    for number in range(4):
        lines = [f"Sheet {number}, bed {bed}: the gardener waters it on day {bed} of the month." for bed in range(9)]
        (folder / f"sheet-{number}.txt").write_text("\n".join(lines))
    index(engine, folder)
    question = "On which day does the gardener water bed 4?"
    assert (ask(engine, question).left_out_passages, ask(engine, question).notices) == (0, ())
    settings = engine.settings.model_copy(update={"answer": AnswerSettings(context_tokens=400)})
    with closing(open_engine(settings, writer=False)) as short:
        answer = ask(short, question)
    left_out, read = answer.left_out_passages, len(answer.sources)
    assert left_out > 0 and left_out + read == 5
    verb = "was" if left_out == 1 else "were"
    sentence = (
        f"{left_out} of the 5 nearest passages {verb} not read: answers take at most 400 tokens of passages"
        " (`context_tokens` under [answer])."
    )
    assert answer.notices == (sentence,) and answer_json(answer)["left_out_passages"] == left_out
    printed = io.StringIO()
    AnswerPrinter(printed).show(Finished(answer))
    assert sentence in printed.getvalue()


def test_an_abandoned_stream_gives_the_device_back(engine: AnswerEngine) -> None:
    stream = engine.ask("When does the rent rise?")
    next(stream)
    assert engine.turn.answer_waits()
    stream.close()
    assert not engine.turn.answer_waits()
    assert "815" in ask(engine, "What does the rent rise to?").raw


def test_a_damaged_cache_costs_time_never_a_wrong_answer(engine: AnswerEngine) -> None:
    before = ask(engine, "What is the frame number of the blue bicycle?")
    engine.settle()
    files = sorted((engine.settings.data_dir / "kv").rglob("*.safetensors"))
    assert len(files) == len(before.sources)
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0x40
        file.chmod(0o600)
        file.write_bytes(bytes(data))
    after = ask(engine, "What is the frame number of the blue bicycle?")
    assert after.raw == before.raw
    assert "live prefill" in [stage.name for stage in after.timings.stages]
    engine.settle()
    assert "live prefill" not in [s.name for s in ask(engine, "What is the frame number?").timings.stages]


def test_a_changed_source_is_marked_stale(engine: AnswerEngine, folder: Path) -> None:
    (folder / "letter.md").write_text("# Letter from the landlord\n\nNothing to see.\n")
    answer = ask(engine, "When does the rent rise?")
    stale = {source.path.name: source.stale for source in answer.sources}
    assert stale["letter.md"]
    assert not any(flag for name, flag in stale.items() if name != "letter.md")


def test_a_second_process_reads_but_does_not_write(engine: AnswerEngine) -> None:
    reader = open_engine(engine.settings, writer=False)
    try:
        answer = ask(reader, "What is the frame number of the blue bicycle?")
        assert "WTU-4471-B" in answer.text
        assert answer.cold_chunks == len(answer.sources)
        assert not list((engine.settings.data_dir / "kv").rglob("*.safetensors"))
        wanted = engine.store.chunks_without_kv(engine.namespace, 1)
        assert wanted[0].chunk_id in {source.chunk_id for source in answer.sources}
    finally:
        reader.close()


def test_an_engine_that_becomes_the_writer_keeps_what_it_prefills_and_frees_the_store(
    engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = engine.settings
    reader = open_engine(settings, writer=False)
    engine.close()
    writer = Store.open(settings.data_dir, settings.store, writer=True)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "register_model", lambda *_named: (_ for _ in ()).throw(OSError("the drive is full")))
        with pytest.raises(OSError, match="full"):
            reader.become_writer(writer)
    assert not reader.store.writer
    reader.become_writer(Store.open(settings.data_dir, settings.store, writer=True))
    assert ask(reader, "What is the frame number of the blue bicycle?").cold_chunks > 0
    reader.settle()
    assert ask(reader, "What is the frame number of the blue bicycle?").cold_chunks == 0
    reader.close()
    Store.open(settings.data_dir, settings.store, writer=True).close()


def test_nothing_indexed_is_said_and_not_guessed(tmp_path: Path, gated: Path) -> None:
    settings = Settings(data_dir=tmp_path / "empty")
    shutil.copytree(gated, settings.data_dir / "models")
    engine = open_engine(settings, writer=True)
    try:
        answer = ask(engine, "When does the rent rise?")
        assert not answer.found
        assert answer.sources == ()
        assert answer.citations == ()
    finally:
        engine.close()


def test_evidence_that_does_not_speak_of_the_question_is_withheld(engine: AnswerEngine) -> None:
    """The small reader finds a sentence for everything; nobody must see it before it was judged."""
    events = list(engine.ask("What is the wifi password of the lighthouse?"))
    answer = events[-1].answer
    assert isinstance(events[-1], Finished)
    assert not answer.found
    assert answer.citations == ()
    assert not [event for event in events if isinstance(event, Evidence)]
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == answer.text
    assert answer.sources


def _damage(data: Path) -> None:
    with closing(sqlite3.connect(data / "catalog.sqlite")) as connection:
        assert connection.execute("UPDATE chunks SET text = replace(text, '815', '915')").rowcount
        connection.commit()


def test_a_writer_reads_the_file_of_a_damaged_text_anew_and_says_so(engine: AnswerEngine, folder: Path) -> None:
    before = ask(engine, "To how many euros does the rent rise?")
    _damage(engine.store.root)
    answer = ask(engine, "To how many euros does the rent rise?")
    assert "915" not in answer.text + "".join(source.text for source in answer.sources)
    assert (answer.text, answer.citations) == (before.text, before.citations)
    assert len(answer.notices) == 1 and "letter.md was damaged; the file was read again" in answer.notices[0]
    assert ask(engine, "To how many euros does the rent rise?").notices == ()
    assert answer_json(answer)["notices"] == list(answer.notices)


def test_without_the_writer_a_damaged_text_is_left_out_and_told(engine: AnswerEngine, folder: Path) -> None:
    engine.store.checkpoint()
    _damage(engine.store.root)
    store = engine.store
    with Store.open(store.root, engine.settings.store, writer=False) as reader:
        engine.store = reader
        answer = ask(engine, "To how many euros does the rent rise?")
        engine.settle()
        engine.store = store
    assert "letter.md" not in {source.path.name for source in answer.sources}
    assert any("letter.md is damaged and left out" in notice for notice in answer.notices)
    row = store.document(folder / "letter.md")
    assert row is not None and row.digest == ""  # the next look at the folder reads it
    index(engine, folder)
    assert "815" in ask(engine, "To how many euros does the rent rise?").text


def test_a_quote_that_the_file_no_longer_holds_is_told_from_the_index(engine: AnswerEngine, folder: Path) -> None:
    letter = folder / "letter.md"
    letter.write_text(letter.read_text().replace("815", "835"), encoding="utf-8")
    events = list(engine.ask("When does the rent rise?"))
    answer = events[-1].answer  # type: ignore[union-attr]
    assert answer.citations and all(citation.as_of is not None for citation in answer.citations)
    early_citations = [event.citation for event in events if isinstance(event, Evidence)]
    assert tuple(early_citations) == answer.citations
    shown = io.StringIO()
    printer = AnswerPrinter(shown)
    for event in events:
        printer.show(event)
    assert "(no longer in the file; from the index of 20" in shown.getvalue()
    citations = answer_json(answer)["citations"]
    assert isinstance(citations, list) and citations[0]["from_index_of"].startswith("20")
