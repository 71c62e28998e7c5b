"""The named pipe's side of the local socket, over the Unix socket that `multiprocessing.connection` takes here."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import connection as pipes
from pathlib import Path

import pytest

from desk_rag.config import StoreSettings
from desk_rag.indexer.resident import client, protocol
from desk_rag.indexer.resident.protocol import Message, NoResident
from desk_rag.indexer.resident.server import Server
from desk_rag.indexer.resident.transports import named_pipe, unix_socket
from desk_rag.store import ownership
from desk_rag.store.maintenance.data_directory import foreign_files
from desk_rag.store.store import Store

_LONG = "x" * 300_000
_PROGRAM = """
import sys, time, types; from pathlib import Path
from desk_rag.indexer.resident import protocol; from desk_rag.indexer.resident.server import Server
protocol.socket = types.SimpleNamespace()
server = Server(Path(sys.argv[1]), lambda request, stop: iter([{'do': 'first'}]))
print(repr(server.start()), flush=True); time.sleep(100)
"""


def handle(request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
    yield {"do": request.get("do"), "long": _LONG}
    while request.get("do") == "endless" and not stop():
        yield {"again": True}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory on a system without Unix sockets."""
    monkeypatch.setattr(protocol, "socket", types.SimpleNamespace())
    Store.open(tmp_path / "data", StoreSettings(reserve_gib=0), writer=True).close()
    return tmp_path / "data"


@pytest.fixture
def server(data: Path) -> Iterator[Server]:
    server = Server(data, handle)
    assert server.start() == ""
    yield server
    server.stop()


def answers_to(data: Path, **request: object) -> list[Message]:
    return list(client.request(data, request))


def test_the_system_decides_between_socket_and_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "os", types.SimpleNamespace(name="posix"))
    monkeypatch.setattr(protocol, "socket", types.SimpleNamespace(AF_UNIX=1))
    assert protocol.transport() is unix_socket
    monkeypatch.setattr(protocol, "os", types.SimpleNamespace(name="nt"))  # which has them since Python 3.15 perhaps
    assert protocol.transport() is named_pipe


def test_a_request_is_answered_in_pieces_and_the_mark_goes_with_the_process(data: Path, server: Server) -> None:
    assert answers_to(data, do="this", question=_LONG[:100_000]) == [{"do": "this", "long": _LONG}]
    mark = data / "run" / named_pipe.NAME
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600 and foreign_files(data, None) == []
    server.stop()
    assert not mark.exists()
    with pytest.raises(NoResident, match=r"^$"):
        answers_to(data, do="this")


def test_who_does_not_know_the_key_is_not_answered(data: Path, server: Server) -> None:
    mark = data / "run" / named_pipe.NAME
    known = json.loads(mark.read_text())
    mark.write_text(json.dumps({**known, "key": "00" * 32}))
    with pytest.raises(NoResident, match="another user"):
        answers_to(data, do="this")
    mark.write_text(json.dumps(known))
    with pipes.Client(known["address"]) as stranger:
        stranger.send_bytes(protocol.encode({**protocol.greeting(), "do": "this"}))
        with suppress(EOFError, OSError):
            while True:
                assert b"this" not in stranger.recv_bytes()
    assert answers_to(data, do="after")


def test_a_process_that_took_the_pipes_name_learns_nothing(data: Path) -> None:
    """It repeats what it hears, and must not be taken for the one that knows the key."""
    with pipes.Listener() as listener:
        (data / "run").mkdir(exist_ok=True)
        known = {"address": listener.address, "key": "11" * 32}
        (data / "run" / named_pipe.NAME).write_text(json.dumps(known))

        def echo() -> None:
            with listener.accept() as pipe, suppress(EOFError, OSError):
                heard.append(pipe.recv_bytes())
                pipe.send_bytes(heard[0] * 2)
                heard.append(pipe.recv_bytes())

        heard: list[bytes] = []
        thread = threading.Thread(target=echo)
        thread.start()
        with pytest.raises(NoResident, match="another user"):
            answers_to(data, do="this")
        thread.join(20)
    assert len(heard) == 1


def test_a_client_that_says_nothing_keeps_nobody_waiting(data: Path, server: Server) -> None:
    address = json.loads((data / "run" / named_pipe.NAME).read_text())["address"]
    silent = [pipes.Client(address) for _ in range(12)]
    assert answers_to(data, do="this")
    for pipe in silent:
        pipe.close()


def test_a_stop_is_told_and_a_hang_up_ends_the_work(data: Path, server: Server) -> None:
    stop = threading.Event()
    for _ in client.request(data, {"do": "endless"}, stop.is_set):
        stop.set()
    assert stop.is_set()
    messages = client.request(data, {"do": "endless"})
    next(messages)
    messages.close()  # type: ignore[attr-defined]
    server.drain(20)
    assert answers_to(data, do="after")


def test_what_a_killed_process_left_is_replaced(data: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(data)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "''\n"
    assert answers_to(data, do="this") == [{"do": "first"}]
    assert Server(data, handle).start() == "another desk-rag answers already"
    child.kill()
    child.wait()
    with pytest.raises(NoResident, match=r"^$"):
        answers_to(data, do="this")
    assert ownership.content_proves(f"run/{named_pipe.NAME}")
    third = Server(data, handle)
    assert third.start() == "" and answers_to(data, do="this")
    third.stop()


def test_a_file_in_its_place_stays(data: Path) -> None:
    mark = data / "run" / named_pipe.NAME
    mark.write_text("mine")
    assert "another program" in Server(data, handle).start()
    assert mark.read_text() == "mine"
