"""Watches the energy budget of a run beside its command, for `zeus-stream run --stop-at`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zeus_stream.errors import ZeusStreamError
from zeus_stream.integrations.run_budget import RunBudget, find_run, not_watched
from zeus_stream.transport.client import Connection

EVERY_S = 5.0
UNKNOWN_LOOKS = 4
"""In a row without an energy, until a warning: the first readings may take a while."""


@contextmanager
def energy_watch(
    budget: RunBudget | None, connection: Connection, run: str, say: Callable[[str], None]
) -> Iterator[None]:
    """Say once that a run is forecast to exceed its budget, that it is near it, and that it is over it.

    Without a budget nothing is watched.
    """
    if budget is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        said: set[str] = set()
        unknown = 0
        while not ended.wait(EVERY_S):
            try:
                now = find_run(connection, run)
            except ZeusStreamError as wrong:
                state, sentence = "trouble", f"the budget could not be checked: {wrong}"
            else:
                if now is None:
                    continue
                unknown = unknown + 1 if now.energy_j is None else 0
                forecast_j = now.forecast.energy_j if now.forecast else None
                state, sentence = budget.state(now.energy_j, forecast_j)
                if unknown == UNKNOWN_LOOKS:
                    state, sentence = "unknown", not_watched(budget)
            if state and state not in said:
                said.add(state)
                say(sentence)

    thread = threading.Thread(target=watch, name="energy watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * EVERY_S)
