"""Questions over the socket and changes of documents, while a process that answers them is about to be killed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from desk_rag import config
from desk_rag.errors import DeskRagError
from desk_rag.indexer.resident import client, keeping, values
from desk_rag.indexer.resident.protocol import NoResident

MARK = "DESK_RAG_ATTACKED"
"""Variable by which the processes of an attacked store are known; its value is the data directory."""
_EVERY = 0.2


class Churn:
    """Asks and changes at intervals, in a thread of its own."""

    def __init__(self, data: Path, change: Callable[[], None]) -> None:
        self.outcomes: Counter[str] = Counter()
        self.violations: list[str] = []
        self._data, self._change = data, change
        self._stop = threading.Event()
        self._request: dict[str, object] = {
            "do": "search", "query": "crowns", "folders": [], "limit": 3, "words_only": True,
            "settings": values.settings_key(config.load().model_copy(update={"data_dir": data})),
        }  # fmt: skip

    def run(self) -> None:
        """Work until stopped."""
        while not self._stop.wait(_EVERY):
            self._change()
            try:
                *_, last = client.request(self._data, self._request, self._stop.is_set)
                if not isinstance(last.get("chunks"), list):
                    self.violations.append(f"a search over the socket answered {sorted(last)}")
                self.outcomes["searches answered over the socket"] += 1
            except (NoResident, DeskRagError):  # it has not begun yet, holds nothing yet, or was killed
                self.outcomes["searches over the socket without an answer"] += 1
            except Exception as error:
                self.violations.append(f"a search over the socket raised {type(error).__name__}: {error}")

    def stop(self) -> None:
        """End the thread's work."""
        self._stop.set()


@contextmanager
def churning(data: Path, change: Callable[[], None]) -> Iterator[Churn]:
    """Ask and change during the block."""
    churn = Churn(data, change)
    thread = threading.Thread(target=churn.run)
    thread.start()
    try:
        yield churn
    finally:
        churn.stop()
        thread.join(30)


def kill_all(process: BaseProcess, data: Path) -> None:
    """Kill a command, its children, and the process that `ask --keep` left behind, all at once."""
    pids = {process.pid} if process.pid else set()
    with suppress(psutil.Error):
        pids |= {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
    kept = keeping.status(data)
    if kept is not None and kept.get("kept"):
        pids.add(int(str(kept["pid"])))
    dying = []
    for pid in pids:
        with suppress(psutil.Error, OSError):
            dying.append(psutil.Process(pid))
            os.kill(pid, signal.SIGKILL)
    process.join()
    psutil.wait_procs(dying, timeout=30)
    kill_marked(data)


def kill_marked(data: Path) -> None:
    """Kill what a command on this store started in its last moment, and what has opened nothing there yet."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(data):
                process.kill()
                process.wait(30)
