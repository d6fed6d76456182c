"""The command ``mcp``: our answers as tools of the Model Context Protocol, over stdin and stdout.

Each tool is a command of ours that only reads. It runs as a child, with limits on its time, its rows and its
output. The only module that imports ``mcp``.
"""

import os
import subprocess
from collections.abc import Mapping

import anyio
import click

from zeus_stream.cli.options import Command, settings_options
from zeus_stream.cli.run_training import as_environment
from zeus_stream.errors import RefusedError
from zeus_stream.package_version import VERSION
from zeus_stream.service_packages import install_command, python_child
from zeus_stream.settings import Settings

MAX_BYTES = 200_000
"""Of one answer."""
STARTS_S = 30.0
"""A command may take so long beside its query: its imports, on a busy host."""
INSTRUCTIONS = """
zeus-stream measures the energy of GPU trainings. All tools only read. Energies are joules, and columns
*_p2_5_j and *_p97_5_j hold their 95 % interval: state it with each figure. null means not measured, never 0.
Begin with `status` for what happens now, with `report` for one run, and with `explain_run` for why a power
limit was chosen. For all else use `sql`: `SHOW TABLES`, `DESCRIBE epochs`, then one SELECT with a LIMIT.
"""


class McpTools:
    """The tools. Their docstrings are what an agent reads."""

    def __init__(self, environ: Mapping[str, str], seconds: float) -> None:
        """Take the environment of the commands, and the longest time of a query."""
        self._environ = environ
        self._seconds = seconds

    async def sql(self, query: str) -> str:
        """Answer one SQL statement that only reads (DuckDB) over the archive, as JSON rows.

        Tables: runs, epochs, steps, windows, named, decisions, trials, savings, metrics, gaps, readings,
        waste, costs, jobs, gpus. `SHOW TABLES` lists all, `DESCRIBE epochs` the columns of one. Too many
        rows are refused: add a LIMIT or aggregate. `@epochs` runs a shipped query.
        """
        if query.strip() == "-":
            raise _refused("sql: could not be answered: there is no query. Give one SELECT.")
        return await self._ask("sql", "--format", "json", "--", query)

    async def status(self) -> str:
        """Return the live state as JSON: GPUs, runs, their search for a power limit, what is missing."""
        return await self._ask("status", "--json")

    async def report(self, run: str = "") -> str:
        """Return the energy, saving, waste, cost and forecast of a run as JSON. Empty: of the last run."""
        return await self._ask("report", "--json", "--", *filter(None, [run]))

    async def explain_run(self, run: str = "") -> str:
        """Explain a run as text: its cost, the limits tried, the choice and its words. Empty: the last."""
        return await self._ask("report", "--explain", "--", *filter(None, [run]))

    async def doctor(self) -> str:
        """Check drivers, permissions, services and the archive; return each fault with its cure as JSON."""
        return await self._ask("doctor", "--json")

    async def _ask(self, *arguments: str) -> str:
        """Return what a command of ours prints. Raises ToolError: it printed nothing but a sentence."""
        command = python_child("zeus_stream", *arguments)
        with anyio.move_on_after(self._seconds + STARTS_S) as limit:
            done = await anyio.run_process(
                command, stdin=subprocess.DEVNULL, env=dict(self._environ), check=False
            )
        if limit.cancelled_caught:
            raise _refused(
                f"{arguments[0]}: could not be answered within {self._seconds + STARTS_S:g} s."
                " Ask for less, or give --seconds."
            )
        if len(done.stdout) > MAX_BYTES:
            raise _refused(
                f"{arguments[0]}: could not be answered: the answer has {len(done.stdout)} bytes, and"
                f" {MAX_BYTES} are allowed. Ask for fewer rows or columns."
            )
        if done.returncode and not done.stdout:
            raise _refused(done.stderr.decode(errors="replace").strip().removeprefix("zeus-stream: "))
        return done.stdout.decode(errors="replace")


def _refused(sentence: str) -> Exception:
    """Return the error that an agent sees; any other is hidden from it."""
    from mcp.server.mcpserver.exceptions import ToolError

    error: Exception = ToolError(sentence)
    return error


@click.command(cls=Command)
@click.option(
    "--rows", type=click.IntRange(1, 100_000), default=1_000, metavar="N",
    help="Rows that a query may return.  [1000]",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), default=20.0, metavar="X",
    help="Time that a query may take.  [20]",
)  # fmt: skip
@settings_options("archive", "analyzer")
def mcp(settings: Settings, *, rows: int, seconds: float) -> None:
    """Serve agents over stdin and stdout, by the Model Context Protocol. All tools only read.

    The tools are sql, status, report, explain_run and doctor. An agent's client starts this command.

    \b
    zeus-stream mcp --archive energy.duckdb
    """
    try:
        from mcp.server import MCPServer
        from mcp_types import ToolAnnotations
    except ModuleNotFoundError as wrong:
        raise RefusedError(
            f"mcp: could not start: {wrong.name} is not installed. Install it: {install_command('mcp')}."
        ) from wrong
    limits = {
        "ZEUS_STREAM_QUERY_ROWS": str(rows),
        "ZEUS_STREAM_QUERY_SECONDS": f"{seconds:g}",
        "ZEUS_STREAM_OBSERVE": "1",  # doctor asks no driver whether it may set a limit
        "COLUMNS": "110",
        "NO_COLOR": "1",
    }
    tools = McpTools({**os.environ, **as_environment(settings), **limits}, seconds)
    server = MCPServer("zeus-stream", version=VERSION, instructions=INSTRUCTIONS, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)
    for tool in (tools.sql, tools.status, tools.report, tools.explain_run, tools.doctor):
        server.add_tool(tool, annotations=reads, structured_output=False)
    server.run()
