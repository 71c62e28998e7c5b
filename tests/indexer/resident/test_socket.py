"""The socket of a resident process, over real sockets and processes: access, limits, what is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from desk_rag.config import StoreSettings
from desk_rag.errors import StoreFull
from desk_rag.indexer.resident import client, protocol
from desk_rag.indexer.resident.protocol import Message, NoResident
from desk_rag.indexer.resident.server import Server
from desk_rag.indexer.resident.transports import unix_socket
from desk_rag.store import ownership
from desk_rag.store.maintenance.data_directory import foreign_files
from desk_rag.store.store import Store

pytestmark = pytest.mark.skipif(os.name == "nt", reason="uses signals and Unix sockets")


class Echo:
    """Answers with what it is asked for, as often as asked, and remembers whether it was told to stop."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.requests = 0

    def __call__(self, request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        self.requests += 1
        if request.get("do") == "full":
            raise StoreFull("The disk is full.", remedy="Free some space.")
        if request.get("do") == "refuse":
            raise NoResident("not that")
        if request.get("do") == "fault":
            raise KeyError("inner")
        yield {"do": request.get("do")}
        if request.get("do") != "endless":
            return
        try:
            while not stop():
                yield {"again": True}
                time.sleep(0.005)
        finally:  # also where sending failed before `stop` was asked: the server then closes this generator
            self.stopped.set()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    Store.open(tmp_path / "data", StoreSettings(reserve_gib=0), writer=True).close()
    return tmp_path / "data"


@pytest.fixture
def echo(data: Path) -> Iterator[Echo]:
    handle = Echo()
    server = Server(data, handle)
    assert server.start() == ""
    yield handle
    server.stop()


def raw(data: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    with unix_socket.address(data) as path:
        connection.connect(path)
    return connection


def answers_to(data: Path, **request: object) -> list[Message]:
    return list(client.request(data, request))


def test_a_request_is_answered_and_only_the_owner_may_connect(data: Path, echo: Echo) -> None:
    assert answers_to(data, do="this") == [{"do": "this"}]
    mode = (data / ownership.SOCKET).lstat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    with closing(raw(data)) as connection:
        assert unix_socket.is_same_user(connection)


def test_without_a_process_there_is_nobody_to_ask(data: Path) -> None:
    with pytest.raises(NoResident, match=r"^$"):
        answers_to(data, do="this")
    with pytest.raises(NoResident, match=r"^$"):
        answers_to(data / "nowhere", do="this")


@pytest.mark.parametrize("other", [{"protocol": 2}, {"version": "9.9.9"}, {"protocol": None}])
def test_another_version_is_told_which_one_runs(data: Path, echo: Echo, other: dict[str, object]) -> None:
    with pytest.raises(NoResident, match=r"it is version \d"):
        answers_to(data, do="this", **other)
    assert echo.requests == 0


def test_errors_arrive_with_remedy_and_exit_code(data: Path, echo: Echo) -> None:
    with closing(raw(data)) as connection:
        connection.sendall(protocol.encode({**protocol.greeting(), "do": "full"}))
        error = json.loads(protocol.Lines(connection, 10_000).read())["error"]
    assert error == {"message": "The disk is full.", "remedy": "Free some space.", "exit_code": StoreFull.exit_code}
    for does in ("full", "refuse", "fault"):
        with pytest.raises(NoResident):  # nothing was answered yet, so the client does it and reports its own error
            answers_to(data, do=does)
    assert answers_to(data, do="after") == [{"do": "after"}]


@pytest.mark.parametrize("line", [b"\n", b"no json\n", b"[]\n", b"\xff\xfe\n", b'{"protocol"', b"[" * 100_000 + b"\n"])
def test_nonsense_ends_its_connection_and_nothing_else(data: Path, echo: Echo, line: bytes) -> None:
    with closing(raw(data)) as connection:
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        assert b"end" not in connection.recv(1000)
    assert answers_to(data, do="after") == [{"do": "after"}]


def test_a_request_has_a_largest_size(data: Path, echo: Echo) -> None:
    with closing(raw(data)) as connection, pytest.raises(OSError):
        for _ in range(100):
            connection.sendall(b"x" * protocol.MOST_REQUEST)
    assert echo.requests == 0 and answers_to(data, do="after")


def test_a_client_that_says_nothing_keeps_nobody_waiting(data: Path, echo: Echo) -> None:
    silent = [raw(data) for _ in range(20)]
    try:
        assert answers_to(data, do="this") == [{"do": "this"}]
    finally:
        for connection in silent:
            connection.close()


def test_too_many_at_once_are_sent_away(data: Path, echo: Echo) -> None:
    busy = [raw(data) for _ in range(8)]
    for connection in busy:
        connection.sendall(protocol.encode({**protocol.greeting(), "do": "endless"}))
        connection.recv(20)
    with pytest.raises(NoResident, match="busy"):
        answers_to(data, do="this")
    for connection in busy:
        connection.close()


def test_who_hangs_up_stops_the_work(data: Path, echo: Echo) -> None:
    messages = client.request(data, {"do": "endless"})
    next(messages)
    messages.close()  # type: ignore[attr-defined]
    assert echo.stopped.wait(20)


def test_a_stop_is_told_and_what_still_comes_is_passed_on(data: Path, echo: Echo) -> None:
    stop = threading.Event()
    for _message in client.request(data, {"do": "endless"}, stop.is_set):
        stop.set()
    assert stop.is_set() and echo.stopped.wait(20)


def test_what_a_killed_process_left_is_replaced(data: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from desk_rag.indexer.resident.server import Server\n"
        "server = Server(Path(sys.argv[1]), lambda request, stop: iter([{'do': 'first'}]))\n"
        "print(repr(server.start()), flush=True); time.sleep(100)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(data)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "''\n"
    assert answers_to(data, do="this") == [{"do": "first"}]
    second = Server(data, Echo())
    assert second.start() == "another desk-rag answers already"
    child.send_signal(signal.SIGSTOP)
    with pytest.raises(NoResident, match="does not answer"):
        answers_to(data, do="this")
    child.kill()
    child.wait()
    assert (data / ownership.SOCKET).exists()
    with pytest.raises(NoResident):
        answers_to(data, do="this")
    third = Server(data, Echo())
    assert third.start() == ""
    assert answers_to(data, do="this") == [{"do": "this"}]
    third.stop()
    assert not (data / ownership.SOCKET).exists()


def test_a_process_that_dies_while_it_answers_is_reported(data: Path) -> None:
    program = (
        "import os, sys, time; from pathlib import Path; from desk_rag.indexer.resident.server import Server\n"
        "def handle(request, stop):\n    yield {'do': 'begun'}\n    time.sleep(0.3)\n    os._exit(1)\n"
        "print(repr(Server(Path(sys.argv[1]), handle).start()), flush=True); time.sleep(100)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(data)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "''\n"
    messages = client.request(data, {"do": "this"})
    assert next(messages) == {"do": "begun"}
    with pytest.raises(client.ResidentError, match="has ended"):
        next(messages)
    child.wait()


def test_a_file_in_its_place_stays(data: Path) -> None:
    (data / ownership.SOCKET).write_text("mine")
    assert Server(data, Echo()).start()
    assert (data / ownership.SOCKET).read_text() == "mine"
    with pytest.raises(NoResident):
        answers_to(data, do="this")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="elsewhere a long path means no socket")
def test_a_long_path_is_no_hindrance(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a folder with a long name"] * 8)
    assert len(os.fsencode(deep)) > 200
    Store.open(deep, StoreSettings(reserve_gib=0), writer=True).close()
    server = Server(deep, Echo())
    assert server.start() == ""
    assert answers_to(deep, do="this") == [{"do": "this"}]
    server.stop()


def test_a_socket_is_not_foreign_and_goes_with_the_directory(data: Path) -> None:
    with unix_socket.address(data) as path, closing(socket.socket(socket.AF_UNIX)) as left_behind:
        left_behind.bind(path)
    assert foreign_files(data, None) == []
    assert ownership.clear(data).remaining == () and not data.exists()
