"""Questions of the screen to the archive of the analyzer. Each is bounded in time and rows."""

from msgspec import convert

from zeus_stream.errors import UnreachableError, ZeusStreamError
from zeus_stream.live.source import LiveSource
from zeus_stream.protocol.snapshots import GapNow
from zeus_stream.questions.asking import answered_by
from zeus_stream.questions.run_questions import find_run_rows, find_trials
from zeus_stream.quoting import quoted
from zeus_stream.screens.terminal.history import KEPT_S
from zeus_stream.screens.terminal.panels.run_page import MOST_GAPS, MOST_WINDOWS, Details, Row
from zeus_stream.views.costs import SIGNALS_NOW
from zeus_stream.views.forecast import COSTS
from zeus_stream.views.run_view import run_of_rows

ANSWER_S = 5.0
_WINDOWS = """
SELECT name, count(*) AS count, sum(energy_j) AS energy_j, sum(duration_s) AS duration_s
FROM windows WHERE run = {run} AND kind = 'window' AND NOT of_host(gpu)
GROUP BY name ORDER BY energy_j DESC LIMIT {most}
"""
_POWER = """
SELECT gpu, epoch(began_at) AS at_s, energy_j / covered_s AS watts FROM seconds
WHERE began_at >= (SELECT max(began_at) FROM seconds) - to_seconds({span_s}) AND covered_s > 0
    AND NOT of_host(gpu)
ORDER BY began_at LIMIT 100000
"""
_GAPS = """
SELECT coalesce(host, 'analyzer') AS host, what, sum(count)::BIGINT AS count, reason
FROM gaps GROUP BY host, what, reason ORDER BY max(t_ns) DESC LIMIT {most}
"""


class LiveArchive:
    """The archive of the analyzer that a `LiveSource` asks."""

    def __init__(self, source: LiveSource) -> None:
        self._source = source

    async def details(self, run: str) -> Details:
        """Return what the archive knows of a run. What it does not answer is left out, with the reason."""
        try:
            rows = await answered_by(find_run_rows(run), self._ask)
            if rows is None:
                return Details()
            _, trials = await answered_by(find_trials(rows), self._ask)
            windows = await self._ask(_WINDOWS.format(run=quoted(run), most=MOST_WINDOWS))
            costs = await self._ask(COSTS.format(run=quoted(run)))
        except ZeusStreamError as wrong:
            return Details(trouble=str(wrong))
        return Details(run_of_rows(rows), trials, windows, costs)

    async def gaps(self) -> list[GapNow]:
        """Return what is missing from the whole archive; nothing, if it does not answer."""
        try:
            return convert(await self._ask(_GAPS.format(most=MOST_GAPS)), list[GapNow])
        except ZeusStreamError:
            return []  # the page shows those since the service started

    async def power(self) -> list[Row]:
        """Return the power of each GPU in the last minutes, by second; nothing, if it does not answer."""
        try:
            return await self._ask(_POWER.format(span_s=round(KEPT_S)))
        except ZeusStreamError:
            return []  # the charts begin now

    async def price(self) -> tuple[float, str] | None:
        """Return what a kilowatt hour of GPUs costs now, and its currency. None: no signal says it."""
        try:
            rows = await self._ask(SIGNALS_NOW)
        except ZeusStreamError:
            return None  # the screen shows no money
        prices = [row for row in rows if row["name"] == "price"]
        return next(((row["factor"] * (row["pue"] or 1.0), str(row["unit"])) for row in prices), None)

    async def _ask(self, query: str) -> list[Row]:
        if (analyzer := self._source.analyzer) is None:
            raise UnreachableError(
                "analyzer: does not answer, so its archive is not asked. It is asked again."
            )
        rows: list[Row] = (await analyzer.sql(query, timeout_s=ANSWER_S)).to_pylist()
        return rows
