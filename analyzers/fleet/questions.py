"""Questions of scripts about the energy of a window, until each has its answer. Pure.

question    -> answered at once if its window is measured, else it waits
window rows -> answers to those who wait, and to those who ask later
frame time  -> an answer without energy for those who have waited too long
"""

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from analyzers.results.result import GiveAnswer
from analyzers.results.rows import WindowRow
from zeus_stream.protocol.events import Answer, Ask, GpuEnergy
from zeus_stream.protocol.fields import of_host

MAX_ASKS = 1_000
"""Questions that wait; one more is answered with Missing."""
MAX_ANSWERS = 1_000
"""Answers kept for those who ask later; the oldest go."""


class Questions:
    """The questions that wait, and the answers that were given last."""

    NOT_STATE: ClassVar = frozenset[str](("_asks",))
    """Scripts ask again what had no answer."""

    def __init__(self) -> None:
        self._asks: dict[str, tuple[str, Ask, int]] = {}
        """By question: host, question, frame time."""
        self._answers: dict[tuple[str, int], Answer] = {}
        """By session and window; the question in them means nothing."""

    def ask(self, host: str, ask: Ask, now_ns: int) -> list[GiveAnswer]:
        """Take in a question. It is answered now, or once its window is measured, or when it times out."""
        if answer := self._answers.get((ask.session, ask.window)):
            return [GiveAnswer(host, replace(answer, question=ask.question))]
        if len(self._asks) >= MAX_ASKS:
            full = missing(f"{MAX_ASKS} questions wait already. Ask again later.")
            return [GiveAnswer(host, replace(full, question=ask.question))]
        self._asks[ask.question] = (host, ask, now_ns)
        return []

    def sessions(self, host: str) -> set[str]:
        return {ask.session for asker, ask, _ in self._asks.values() if asker == host}

    def settle(self, session: str, window: int, answer: Answer) -> list[GiveAnswer]:
        """Keep an answer, and give it to those who wait for it."""
        self._answers[session, window] = answer
        if len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]
        waiting = [
            (question, host)
            for question, (host, ask, _) in self._asks.items()
            if (ask.session, ask.window) == (session, window)
        ]
        for question, _ in waiting:
            del self._asks[question]
        return [GiveAnswer(host, replace(answer, question=question)) for question, host in waiting]

    def time_out(self, host: str, now_ns: int, timeout_ns: int) -> list[GiveAnswer]:
        """Return an answer for every question of a host that has waited too long."""
        given: list[GiveAnswer] = []
        for question, (asker, _, since_ns) in list(self._asks.items()):
            if asker == host and now_ns - since_ns >= timeout_ns:
                del self._asks[question]
                never = missing("its end has not arrived. Is it a window of this run, and was it ended?")
                given.append(GiveAnswer(host, replace(never, question=question)))
        return given


def answer_of(rows: Sequence[WindowRow]) -> Answer:
    """Return the answer that rows of one window, one a GPU, make. The host's own parts are not in it."""
    gpus = []
    for row in rows:
        if row.gpu is not None and of_host(row.gpu):
            continue
        # A counter that sees a part of the time has no hard bounds, but an interval.
        low_j = row.energy_p2_5_j if row.energy_low_j is None else row.energy_low_j
        high_j = row.energy_p97_5_j if row.energy_high_j is None else row.energy_high_j
        if row.gpu is None or row.energy_j is None or low_j is None or high_j is None:
            return missing(row.quality if row.gpu is None else f"{row.gpu}: {row.quality}")
        gpus.append(GpuEnergy(row.gpu, row.energy_j, low_j, high_j))
    return Answer("", rows[0].duration_s, tuple(gpus), None)


def missing(reason: str) -> Answer:
    return Answer("", None, (), reason)
