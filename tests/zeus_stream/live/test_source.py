"""The service that a screen asks: the analyzer, or the collector where there is none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Literal

import anyio
import pytest

from zeus_stream.errors import UnreachableError
from zeus_stream.live import source
from zeus_stream.live.answer import encoded
from zeus_stream.live.source import Candidate, LiveSource, candidates
from zeus_stream.paths import ROOT_RUN
from zeus_stream.protocol import codec
from zeus_stream.protocol.snapshots import AskNow, Snapshot
from zeus_stream.transport import sockets
from zeus_stream.transport.listening.listener import Listener

pytestmark = pytest.mark.anyio
Process = Literal["analyzer", "collector"]


@asynccontextmanager
async def service(path: Path, process: Process) -> AsyncIterator[list[AskNow]]:
    """Answer at a socket as a service does; give what was asked."""
    asked: list[AskNow] = []
    context = sockets.context()

    async def serve() -> None:
        while True:
            for message in await channel.receive():
                correlation, payload = message.parts
                asked.append(codec.decode(payload, AskNow))
                channel.send(
                    message.sender, correlation, encoded(Snapshot(process=process, version="1", wall_ns=1))
                )

    try:
        with closing(Listener(path)) as channel:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve)
                yield asked
                tasks.cancel_scope.cancel()
    finally:
        context.destroy(linger=0)


def two(directory: Path) -> tuple[Candidate, Candidate]:
    return Candidate("analyzer", directory / "query"), Candidate("collector", directory / "control")


async def test_the_analyzer_is_asked_where_both_are_there(zeus_dir: Path) -> None:
    async with (
        service(zeus_dir / "control", "collector"),
        service(zeus_dir / "query", "analyzer") as asked,
        LiveSource(two(zeus_dir), "node1") as screen,
    ):
        assert [(await screen.look()).process for _ in range(3)] == ["analyzer"] * 3
        assert screen.analyzer is not None
    assert set(asked) == {AskNow("node1")}


async def test_the_collector_alone_is_enough_and_an_analyzer_that_starts_is_found(zeus_dir: Path) -> None:
    async with service(zeus_dir / "control", "collector"), LiveSource(two(zeus_dir)) as screen:
        assert (await screen.look()).process == "collector"
        assert screen.analyzer is None
        async with service(zeus_dir / "query", "analyzer"):
            with anyio.fail_after(30):
                while (await screen.look()).process != "analyzer":
                    await anyio.sleep(0.05)


@pytest.mark.sweep
async def test_an_analyzer_that_goes_is_waited_for_before_the_collector_is_asked(
    zeus_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "ANSWER_S", 0.2)
    async with service(zeus_dir / "control", "collector"), LiveSource(two(zeus_dir)) as screen:
        async with service(zeus_dir / "query", "analyzer"):
            with anyio.fail_after(30):
                while (await screen.look()).process != "analyzer":
                    await anyio.sleep(0.05)
        for _ in range(2):
            with pytest.raises(UnreachableError):
                await screen.look()
        monkeypatch.setattr(source, "AWAY_NS", 0)
        assert (await screen.look()).process == "collector"


async def test_without_any_service_the_cure_is_said(zeus_dir: Path) -> None:
    async with LiveSource(two(zeus_dir)) as screen:
        with pytest.raises(UnreachableError, match=r"neither an analyzer nor a collector.*zeus-stream run"):
            await screen.look()


def test_the_services_of_this_user_come_before_those_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    found = candidates({"XDG_RUNTIME_DIR": "/run/user/1000", "HOME": "/home/anna"}, None)
    assert [(one.process, one.address) for one in found] == [
        ("analyzer", Path("/run/user/1000/zeus-stream/query")),
        ("analyzer", ROOT_RUN / "query"),
        ("collector", Path("/run/user/1000/zeus-stream/control")),
        ("collector", ROOT_RUN / "control"),
    ]
    chosen = candidates({"ZEUS_STREAM_DIR": "/srv/z"}, None)
    assert [one.address for one in chosen] == [Path("/srv/z/query"), Path("/srv/z/control")]
