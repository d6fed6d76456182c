import signal
import threading

from zeus_stream.training.publisher import SIGNAL, MainThreadNudge


def asked_by_a_thread(nudge: MainThreadNudge) -> None:
    thread = threading.Thread(target=nudge.ask)
    thread.start()
    thread.join()


def test_any_thread_has_the_main_thread_call() -> None:
    called_in: list[int] = []
    nudge = MainThreadNudge()
    nudge.arm(lambda: called_in.append(threading.get_ident()))
    try:
        asked_by_a_thread(nudge)
        assert called_in == [threading.main_thread().ident]
    finally:
        nudge.disarm()
    asked_by_a_thread(nudge)
    assert len(called_in) == 1
    assert signal.getsignal(SIGNAL) is signal.SIG_DFL


def test_a_signal_that_somebody_has_stays_theirs() -> None:
    theirs: list[int] = []

    def handler(number: int, _: object) -> None:
        theirs.append(number)

    signal.signal(SIGNAL, handler)
    try:
        nudge = MainThreadNudge()
        nudge.arm(lambda: None)
        asked_by_a_thread(nudge)
        nudge.disarm()
        assert signal.getsignal(SIGNAL) is handler
        assert theirs == []
    finally:
        signal.signal(SIGNAL, signal.SIG_DFL)


def test_a_loop_in_another_thread_has_no_nudges() -> None:
    nudge = MainThreadNudge()
    thread = threading.Thread(target=nudge.arm, args=(lambda: None,))
    thread.start()
    thread.join()
    assert signal.getsignal(SIGNAL) is signal.SIG_DFL
