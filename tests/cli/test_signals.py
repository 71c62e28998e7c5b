"""The first signal asks, the second ends, and the handlers that were there before come back."""

from __future__ import annotations

import os
import signal

import pytest

from desk_rag.cli.signals import stoppable


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    report: list[str] = []
    with pytest.raises(KeyboardInterrupt), stoppable(lambda: report.append("stopping")) as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop() and report == ["stopping"]
        os.kill(os.getpid(), number)
        pytest.fail("went on after the second signal")
    assert report == ["stopping"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
