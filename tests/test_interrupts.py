"""Signals: at once while nothing is lost, in order while something is, and never forgotten."""

from __future__ import annotations

import signal
import threading

import pytest

from extractor.interrupts import stop_on_interrupt

SENT = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("sent", SENT)
def test_before_the_work_a_signal_ends_it_at_once(sent):
    with stop_on_interrupt(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(sent)


@pytest.mark.parametrize("sent", SENT)
def test_during_the_work_the_first_asks_and_the_second_ends(sent, capsys):
    with stop_on_interrupt() as stop:
        stop.in_order()
        assert not stop()
        signal.raise_signal(sent)
        assert stop()
        assert "stopping after this step" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(sent)


def test_a_handler_that_an_engine_set_while_it_was_loaded_does_not_win():
    """vLLM's rank ignores Ctrl-C, also where it lives in the driver's own process."""
    with stop_on_interrupt() as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stop.in_order()
        signal.raise_signal(signal.SIGINT)
        assert stop()


class Destructor:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_was_raised_in_a_destructor_is_not_forgotten():
    """Python ignores it there, and the run went on to its end."""
    with stop_on_interrupt() as stop:
        Destructor()
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            stop.in_order()


def test_handlers_are_given_back():
    before = [signal.getsignal(sent) for sent in SENT]
    with stop_on_interrupt():
        assert [signal.getsignal(sent) for sent in SENT] != before
    assert [signal.getsignal(sent) for sent in SENT] == before


def test_other_threads_leave_signals_alone():
    found = []

    def work() -> None:
        with stop_on_interrupt() as stop:
            stop.in_order()
            found.append((stop(), signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, before)]
