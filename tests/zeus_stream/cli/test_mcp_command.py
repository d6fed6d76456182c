"""The command ``mcp``, asked by a real client over its stdin and stdout."""

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.environment import ROOT
from tests.zeus_stream.conftest import Cli, Ran

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(find_spec("mcp") is None, reason="the extra mcp is not installed"),
]

SKILL = ROOT / "packaging" / "skills" / "zeus-stream" / "SKILL.md"
TOOLS = {"sql", "status", "report", "explain_run", "doctor"}


def examples() -> list[dict[str, Any]]:
    """Return the calls that the skill shows."""
    blocks = re.findall(r"```json\n(.*?)\n```", SKILL.read_text(encoding="utf-8"), re.DOTALL)
    return [json.loads(block) for block in blocks]


@asynccontextmanager
async def client(zeus: Cli, *options: str) -> AsyncIterator[Any]:
    import mcp  # 0.7 s of each worker's collection

    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "zeus_stream", "mcp", *options],
        env=zeus.environment,
        cwd=zeus.directory,
    )
    async with mcp.Client(server, read_timeout_seconds=120) as opened:
        yield opened


async def answer(asked: Any, tool: str, **arguments: Any) -> str:
    """Return the text of an answer, which is no error."""
    result = await asked.call_tool(tool, arguments)
    text = "".join(part.text for part in result.content)
    assert not result.is_error, text
    return text


async def refusal(asked: Any, tool: str, **arguments: Any) -> str:
    result = await asked.call_tool(tool, arguments)
    assert result.is_error
    return "".join(part.text for part in result.content)


async def test_tools_only_read_and_answer_what_the_commands_and_the_skill_say(ran: Ran) -> None:
    calls = examples()
    assert len(calls) >= 8
    async with client(ran.zeus) as asked:
        tools = (await asked.list_tools()).tools
        services = json.loads(await answer(asked, "status"))["services"]
        report = json.loads(await answer(asked, "report"))
        words = await answer(asked, "explain_run", run=report["run"])
        checks = json.loads(await answer(asked, "doctor"))
        for call in calls:
            text = await answer(asked, call["tool"], **call["arguments"])
            assert text.strip(), call
            if call["tool"] != "explain_run":
                json.loads(text)
    assert {tool.name for tool in tools} == TOOLS
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    assert set(re.findall(r"^\| .* \| `(\w+)` \|$", SKILL.read_text(encoding="utf-8"), re.MULTILINE)) == TOOLS
    assert {each["state"] for each in services} == {"does not answer"}
    assert report == json.loads(ran.zeus("report", "--json").stdout)
    assert "chosen" in words
    assert {"what", "verdict"} <= set(checks[0])
    assert any("only observes" in check["says"] for check in checks)  # no driver was asked to set a limit


async def test_what_writes_or_is_too_large_is_refused_with_a_cure(ran: Ran, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    async with client(ran.zeus, "--rows", "10") as asked:
        assert "LIMIT" in await refusal(asked, "sql", query="SELECT * FROM range(11)")
        assert len(json.loads(await answer(asked, "sql", query="SELECT * FROM range(10)"))) == 10
        for query in (
            f"COPY epochs TO '{target}'",
            "-",
            "",
        ):
            assert await refusal(asked, "sql", query=query), query
        assert "absent" in await refusal(asked, "report", run="absent")
        assert await refusal(asked, "report", run="--html=out.html")
        assert "bytes" in await refusal(asked, "sql", query="SELECT repeat('wide', 100000) AS wide")
    assert not target.exists()
    assert not (ran.zeus.directory / "out.html").exists()


async def test_a_query_that_takes_too_long_ends(ran: Ran) -> None:
    async with client(ran.zeus, "--seconds", "0.5") as asked:
        text = await refusal(asked, "sql", query="SELECT count(*) FROM range(100000000) a, range(1000000) b")
        assert "0.5 s" in text
        assert json.loads(await answer(asked, "sql", query="SELECT 1 AS one")) == [{"one": 1}]
