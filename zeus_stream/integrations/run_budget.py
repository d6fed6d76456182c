"""The energy budget of a run: `zeus-stream run --stop-at 500Wh`. It warns, and ends the run at a checkpoint.

Nothing here ends a training by itself. A script, or the callback of a framework, asks after a checkpoint.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import SettingsError, ZeusStreamError
from zeus_stream.protocol.snapshots import RunNow
from zeus_stream.quoting import quoted
from zeus_stream.training.default import default_publisher
from zeus_stream.training.publisher import Publisher
from zeus_stream.transport.client import Connection, connect

VARIABLE = "ZEUS_STREAM_STOP_AT"
ENDS = "It ends at its next checkpoint, if a callback or zeus_stream.over_budget() asks there."
NEAR = 0.8
"""Share of a budget from which on a warning names it."""
ANSWER_S = 5.0
SELDOM = 20
"""An analyzer that did not answer is asked again after this many times as long as it was waited for."""
_UNITS = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3.6e3, "kWh": 3.6e6, "MWh": 3.6e9}
_log = logging.getLogger("zeus_stream")
_warned: set[str] = set()
_ask_from_ns: dict[str, int] = {}
"""By run: when an analyzer that did not answer is asked again."""
Agree = Callable[[Any], Any]


class RunBudget(Struct, frozen=True):
    """The energy that a run may use."""

    text: str
    """As it was given: ``500Wh``."""
    energy_j: float

    def look(self, connect: Callable[[], Connection], run: str) -> tuple[str, str]:
        """Return where a run stands as `state` does, ``unknown`` or ``trouble``, and a sentence."""
        try:
            now = find_run(connect(), run)
        except ZeusStreamError as wrong:
            return "trouble", f"the budget of {self.text} could not be checked: {wrong}"
        if now is None:
            return "", ""
        if now.energy_j is None:
            return "unknown", (
                f"the budget of {self.text} could not be watched: the energy of the run is not known."
                " It needs a GPU with an energy counter: see `zeus-stream status`."
            )
        return self.state(now.energy_j, now.forecast.energy_j if now.forecast else None)

    def state(self, used_j: float | None, forecast_j: float | None) -> tuple[str, str]:
        """Return where a run stands: ``""``, ``exceeds``, ``near`` or ``over``, and a sentence."""
        if used_j is None:
            return "", ""
        share = f"{100 * used_j / self.energy_j:.0f} % of its budget of {self.text}"
        if used_j >= self.energy_j:
            return "over", f"the run has used {share}. {ENDS}"
        if used_j >= NEAR * self.energy_j:
            return "near", f"the run has used {share}."
        if forecast_j is not None and forecast_j > self.energy_j:
            whole = f"{100 * forecast_j / self.energy_j:.0f} %"
            return "exceeds", f"the run is forecast to use {whole} of its budget of {self.text}."
        return "", ""


def parse_budget(text: str) -> RunBudget:
    """Return a budget from a figure with its unit, such as ``500Wh``. Raises SettingsError."""
    found = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([kM]?(?:J|Wh))\s*", text)
    if found is None or float(found[1]) <= 0:
        raise SettingsError(
            f"--stop-at: could not understand {text!r}. Give an energy with its unit, such as 500Wh, 1.5kWh"
            " or 2MJ."
        )
    return RunBudget(f"{found[1]}{found[2]}", float(found[1]) * _UNITS[found[2]])


def budget_of(environ: Mapping[str, str]) -> RunBudget | None:
    """Return the budget that a run was started with. None: it has none. Raises SettingsError."""
    text = environ.get(VARIABLE, "")
    return parse_budget(text) if text else None


def find_run(connection: Connection, run: str) -> RunNow | None:
    """Return the live state of a run. None: no analyzer knows it. Raises ZeusStreamError."""
    asked = f"SELECT host FROM sessions WHERE run = {quoted(run)} ORDER BY rank LIMIT 1"  # noqa: S608  (quoted)
    hosts = connection.sql(asked, timeout_s=ANSWER_S)["host"].to_pylist()
    if not hosts:
        return None
    now = connection.now(hosts[0], timeout_s=ANSWER_S)
    return next((each for each in now.runs if each.run == run), None)


def over_budget(publisher: Publisher | None = None, agree: Agree | None = None) -> bool:
    """Return whether the run has used its energy budget. Ask after a checkpoint, and end the training then.

    The budget is that of ``zeus-stream run --stop-at 500Wh`` or ``ZEUS_STREAM_STOP_AT``. Without one, and
    while no analyzer answers, it is False. It never raises into a training.

    Args:
        publisher: that of the script. None: the default one.
        agree: a function that returns, in every rank, what the first one gave it. Without it a training of
            several ranks is not ended: its ranks would not end together.

    Example:
        >>> save_checkpoint()
        >>> if zeus_stream.over_budget():
        ...     break
    """
    try:
        budget = budget_of(os.environ)
    except SettingsError as wrong:
        _warn("budget", str(wrong))
        return False
    if budget is None:
        return False
    started = (publisher or default_publisher()).started
    if started.world_size > 1 and agree is None:
        _warn("agree", "over_budget: could not end a run of several ranks. Give it `agree`: see its help.")
        return False
    over = started.rank == 0 and check_budget(budget, started.run, connect)
    return bool(agree(over)) if agree is not None else over


def check_budget(budget: RunBudget, run: str, connect: Callable[[], Connection]) -> bool:
    """Return whether a run has used its budget; log once why, and warnings unless `zeus-stream run` has."""
    began_ns = monotonic_ns()
    if began_ns < _ask_from_ns.get(run, 0):
        return False
    state, sentence = budget.look(connect, run)
    if state == "trouble":
        ended_ns = monotonic_ns()
        _ask_from_ns[run] = ended_ns + SELDOM * (ended_ns - began_ns)
    if state == "over" or (state and "ZEUS_STREAM_RUN" not in os.environ):
        _warn(state, sentence)
    return state == "over"


def _warn(cause: str, sentence: str) -> None:
    if cause not in _warned:
        _warned.add(cause)
        _log.warning("zeus-stream: %s", sentence)
