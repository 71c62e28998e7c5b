"""Several questions in one run: in order, the same words as alone, chunks read once, faults said in their place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from io import StringIO
from pathlib import Path

import pytest

from desk_rag.answering.conversation.turns import Request
from desk_rag.answering.opening import open_engine
from desk_rag.cli.questions import several
from desk_rag.config import Settings
from desk_rag.errors import ConfigError
from desk_rag.indexer.parts import parts_of
from desk_rag.indexer.resident import client, values
from desk_rag.indexer.resident.answers import Resident
from desk_rag.indexer.resident.protocol import Message
from desk_rag.indexer.resident.server import Server
from desk_rag.kv.loading.file_io import FileReader
from tests.answering.together import as_on_a_gpu
from tests.cli.test_store import Desk

PAGES = {
    "walk.md": "# Nine days in Norrfell\n\nCamping is forbidden in the whole of the Norrfell nature park, and the fine "
    "is 200 crowns. The bus to the park leaves at 7:40.\n",
    "door.md": "# House\n\nThe kitchen door is painted green. The roofer comes on 14 May.\n",
}
FINE, ROOFER, BUS = (
    "What is the fine for camping in the Norrfell nature park?",
    "When does the roofer come?",
    "When does the bus to the park leave?",
)
SAME = ("answer", "found", "citations", "warm_chunks", "cold_chunks", "context_tokens", "loaded_bytes", "confidence")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    place = tmp_path_factory.mktemp("desk")
    desk = Desk(place / "documents", place / "data")
    desk.documents.mkdir()
    for name, text in PAGES.items():
        (desk.documents / name).write_text(text, encoding="utf-8")
    ran = desk.run("index", str(desk.documents))
    assert ran.code == 0, ran.err
    return desk


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of every read of a KV file."""
    sizes: list[int] = []
    read = FileReader.read

    def counted(self: FileReader, path: Path, identity: object, offset: int, nbytes: int, into: object) -> None:
        sizes.append(nbytes)
        read(self, path, identity, offset, nbytes, into)  # type: ignore[arg-type]

    monkeypatch.setattr(FileReader, "read", counted)
    yield sizes


@pytest.fixture(params=["one after the other", "at once"])
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of questions that were answered at once: as on a CPU, and as on a GPU, three by three."""
    return as_on_a_gpu(monkeypatch) if request.param == "at once" else []


class Beside:
    """A process that has the models loaded, as `watch` and the UI are; notes what it is asked to do."""

    def __init__(self, desk: Desk) -> None:
        settings = Settings(data_dir=desk.data)
        self.engine = open_engine(settings, writer=True)
        parts = parts_of(self.engine)
        resident = Resident(settings, lambda: parts, lambda: nullcontext(self.engine), lambda: False, tuple)
        self.asked: list[object] = []
        self.leaves_after: int | None = None
        """Number of answers after which it ends."""

        def handle(request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
            self.asked.append(request["do"])
            answers = 0

            def leaves() -> bool:
                return stop() or answers == self.leaves_after

            for message in resident.handle(request, leaves):
                yield message
                answers += "answered" in message

        self.server = Server(desk.data, handle)
        assert self.server.start() == ""

    def close(self) -> None:
        self.server.stop()
        self.engine.close()


@pytest.fixture
def beside(desk: Desk, groups: list[int]) -> Iterator[Beside]:
    with closing(Beside(desk)) as beside:
        yield beside


def test_a_process_with_the_models_gets_them_as_one_request_and_answers_them_as_if_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, groups: list[int], beside: Beside
) -> None:
    alone = {question: desk.json("ask", "--private", question) for question in (FINE, ROOFER, BUS)}
    assert beside.asked == ["ask"] * 3 and not groups
    beside.asked.clear()
    monkeypatch.setattr(sys, "stdin", StringIO(f"{FINE}\n{ROOFER}\nWhat is in @nowhere.md?\n{BUS}\n"))
    ran = desk.run("ask", "--private", "-", "--json")
    assert ran.code == 2 and beside.asked == ["ask_all"]
    answers = [json.loads(line) for line in ran.out.splitlines()]
    assert answers[2].keys() == {"question", "error"} and "nowhere" in answers[2]["error"]
    assert [answer["question"] for answer in answers[:2] + answers[3:]] == [FINE, ROOFER, BUS]
    for answer in answers[:2] + answers[3:]:
        assert {name: answer[name] for name in SAME} == {name: alone[answer["question"]][name] for name in SAME}
    assert groups in ([], [3, 1])


def test_what_a_process_that_ends_has_not_answered_is_answered_here(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, beside: Beside
) -> None:
    beside.leaves_after = 1
    monkeypatch.setattr(several.work, "engine_of", lambda *_: nullcontext(beside.engine))
    monkeypatch.setattr(sys, "stdin", StringIO(f"{FINE}\n{ROOFER}\n{BUS}\n"))
    ran = desk.run("ask", "--private", "-")
    assert ran.code == 0 and beside.asked == ["ask_all"], ran.err
    assert [part.split("\n", 1)[0] for part in ran.out.split("\n\n")] == [f"> {each}" for each in (FINE, ROOFER, BUS)]
    assert "200 crowns" in ran.out and "14 May" in ran.out and "7:40" in ran.out


def test_more_questions_than_fit_into_one_request_are_several_requests(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, beside: Beside
) -> None:
    monkeypatch.setattr(several, "_MOST_PORTION", 1)
    monkeypatch.setattr(sys, "stdin", StringIO(f"{FINE}\n{ROOFER}\n"))
    ran = desk.run("ask", "--private", "-")
    assert ran.code == 0 and beside.asked == ["ask_all", "ask_all"]
    assert ran.out.index("200 crowns") < ran.out.index("14 May")


def test_a_client_that_stops_gets_no_further_answer(desk: Desk, beside: Beside) -> None:
    settings = Settings(data_dir=desk.data)
    requests = values.plain([Request(question) for question in (FINE, ROOFER, BUS) * 3])
    asked = {"do": "ask_all", "requests": requests, "settings": values.settings_key(settings)}
    answered: list[Message] = []
    for message in client.request(desk.data, asked, lambda: bool(answered)):
        if "answered" in message:
            answered.append(message)
    assert 1 <= len(answered) < 9
    beside.server.drain(20)
    assert not beside.engine.turn.answer_waits()


def test_each_is_answered_as_if_alone_and_a_chunk_is_read_once(
    desk: Desk, tmp_path: Path, bytes_read: list[int], groups: list[int]
) -> None:
    questions = [FINE, ROOFER, BUS, FINE]
    alone = {question: desk.json("ask", "--private", question) for question in dict.fromkeys(questions)}
    read_alone = sum(bytes_read)
    assert read_alone == sum(int(str(answer["loaded_bytes"])) for answer in alone.values()), "both files, three times"
    bytes_read.clear()
    file = tmp_path / "questions.txt"
    file.write_text("\n".join([FINE, "", f"  {ROOFER}  ", BUS, FINE]), encoding="utf-8")
    ran = desk.run("ask", "--private", "--batch", str(file), "--json")
    assert ran.code == 0, ran.err
    answers = [json.loads(line) for line in ran.out.splitlines()]
    assert [answer["question"] for answer in answers] == questions
    for answer in answers:
        assert {name: answer[name] for name in SAME} == {name: alone[answer["question"]][name] for name in SAME}
    assert sum(bytes_read) * 3 == read_alone
    assert groups in ([], [3, 1])


def test_lines_of_standard_input_are_questions_and_a_wrong_name_stops_no_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, groups: list[int]
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO(f"{ROOFER}\nWhat is in @nowhere.md?\n{FINE}\n"))
    ran = desk.run("ask", "--private", "-")
    assert ran.code == 2
    first, wrong, last = ran.out.split("\n\n")
    assert first.startswith(f"> {ROOFER}\n") and "14 May" in first
    assert wrong.startswith("> What is in @nowhere.md?\n") and "nowhere" in wrong.split("\n", 1)[1]
    assert last.startswith(f"> {FINE}\n") and "200 crowns" in last
    monkeypatch.setattr(sys, "stdin", StringIO(f"What is in @nowhere.md?\n{FINE}\n"))
    ran = desk.run("ask", "--private", "-", "--json")
    wrong_json, right_json = (json.loads(line) for line in ran.out.splitlines())
    assert wrong_json.keys() == {"question", "error"} and "nowhere" in wrong_json["error"]
    assert right_json["answer"] == "200 crowns"


def test_all_of_them_are_saved_in_one_chat(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(json.loads(desk.run("chats", "--json").out)["chats"])
    monkeypatch.setattr(sys, "stdin", StringIO(f"{ROOFER}\n{FINE}\n"))
    ran = desk.run("ask", "-", "--json")
    numbers = {json.loads(line)["chat"] for line in ran.out.splitlines()}
    chats = json.loads(desk.run("chats", "--json").out)["chats"]
    assert len(numbers) == 1 and len(chats) == before + 1 and chats[0]["turns"] == 2


def test_one_line_is_a_single_question(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO(f"\n{ROOFER}\n"))
    ran = desk.run("ask", "--private", "-")
    assert ran.code == 0 and "14 May" in ran.out and "> " not in ran.out


def test_wrong_words_are_refused(desk: Desk, tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_text(" \n\n")
    binary.write_bytes(b"\xff\xfe\x00")
    several_lines = tmp_path / "two.txt"
    several_lines.write_text("one?\ntwo?\n")
    for words, why in (
        (["--batch", str(empty)], "holds no question"),
        (["--batch", str(binary)], "not UTF-8"),
        (["--batch", str(tmp_path / "missing.txt")], "cannot be read"),
        ([FINE, "--batch", str(empty)], "takes the place of the question"),
        (["--batch", str(several_lines), "--continue"], "cannot continue a chat"),
        ([], "The question is empty"),
    ):
        ran = desk.run("ask", *words)
        assert ran.code == 2 and why in ran.err, (words, ran.err)


def test_a_question_with_line_breaks_in_its_argument_stays_one() -> None:
    assert several.questions_of(" one\ntwo ", None) == ["one\ntwo"]
    with pytest.raises(ConfigError):
        several.questions_of("", Path("/nowhere"))


def test_comments_are_no_questions(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_text("# about the lease\nWhen does the lease end?\n\n  # and\nWho signed it?\n")
    assert several.questions_of("", file) == ["When does the lease end?", "Who signed it?"]
