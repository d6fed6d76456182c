"""Any bytes on any socket: every process lives, stays small, counts, and goes on serving who means well."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests import hostile
from tests.directories import short_directory
from tests.environment import PATIENCE_S, run
from tests.processes.under_fire import (
    Impostor,
    Sender,
    Victim,
    analyzer,
    collector,
    fire,
    train,
    victim,
)
from tests.waiting import until
from zeus_stream.paths import places
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import Fetch
from zeus_stream.protocol.queries import AskStatus, Query
from zeus_stream.transport.client import Connection

MESSAGES = 250
GROWTH_MB = 250
"""What queues and sessions at their bounds may take."""
NOBODY = 65_534


def for_ever(connection: socket.socket, data: bytes) -> None:
    """Send the same again and again, 4 GB at most."""
    for _ in range(4 * 10**9 // len(data)):
        connection.sendall(data)


def counted(analyzes: Victim) -> int:
    """Return how many messages of collectors the analyzer could make nothing of."""
    rows = analyzes.rows("analyzer")
    words = ("malformed", "messages not understood")
    return sum(int(value) for (_, name), value in rows.items() if name in words)


def archived(directory: Path, run: str) -> int:
    """Return how many steps of a run the analyzer can tell of."""
    table = Connection(places({"ZEUS_STREAM_DIR": str(directory)})).sql(
        f"SELECT count(*) AS n FROM steps WHERE run = '{run}'",  # noqa: S608  (our own name)
        timeout_s=60,
    )
    return int(table["n"][0].as_py())


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Victim, Victim]]:
    """A collector and an analyzer that live through one test after the other."""
    with (
        short_directory() as directory,
        collector(directory) as collects,
        analyzer(directory) as analyzes,
    ):
        yield collects, analyzes


def test_collector_and_analyzer_live_through_anything_and_serve_who_means_well(
    both: tuple[Victim, Victim],
) -> None:
    collects, analyzes = both
    zeus_dir = collects.directory
    before_mb = [process.memory_mb for process in both]
    for name, make in hostile.SENT.items():
        sent, _ = fire(zeus_dir / name, make, seed=1, count=MESSAGES if name != "query" else MESSAGES // 5)
        assert sent
        of = "analyzer" if name == "query" else "collector"
        (collects if of == "collector" else analyzes).rows(of)
    assert collects.alive
    assert analyzes.alive
    mine = f"refused of process {os.getpid()} of user {os.getuid()}"
    refused = (("publish", "messages refused"), ("control", "messages refused"), ("publish", mine))
    until(lambda: all(int(collects.rows("collector").get(row, 0)) > MESSAGES / 4 for row in refused))

    def refused_by_analyzer() -> int:  # what a sender has not sent when it closes is lost
        fire(zeus_dir / "query", hostile.query, seed=1, count=MESSAGES // 5)
        return int(analyzes.rows("analyzer")["counters", "malformed requests"])

    until(lambda: refused_by_analyzer() > MESSAGES / 20)
    trained = train(zeus_dir, "honest", 20)
    assert (trained.returncode, trained.stderr) == (0, "")
    until(lambda: archived(zeus_dir, "honest") == 20)
    # What large messages took is given back within seconds.
    most_mb = [mb + GROWTH_MB for mb in before_mb]
    until(lambda: all(process.memory_mb < most for process, most in zip(both, most_mb, strict=True)))
    assert [process.alive for process in both] == [True, True]


def test_what_a_collector_that_is_none_says_harms_neither_analyzer_nor_training(zeus_dir: Path) -> None:
    impostor = Impostor(zeus_dir, seed=2)
    with ExitStack() as ends:
        ends.callback(impostor.close)
        analyzes = ends.enter_context(analyzer(zeus_dir))
        trains = ends.enter_context(
            victim(zeus_dir, "-c", TRAINER_UNDER_FIRE, str(zeus_dir / "over"), ready="feed")
        )
        before_mb = analyzes.memory_mb
        deadline = time.monotonic() + 120
        while impostor.sent < 1_000 or not (zeus_dir / "over").exists():
            impostor.turn()
            assert time.monotonic() < deadline
        until(lambda: counted(analyzes))
        assert analyzes.alive
        # A message may be as large as it likes while it comes in; nothing of it is kept.
        until(lambda: analyzes.memory_mb < before_mb + GROWTH_MB)
        assert impostor.heard
        assert trains.process.wait(PATIENCE_S) == 0


TRAINER_UNDER_FIRE = """
import os, sys, time
from pathlib import Path
from zeus_stream import Publisher
del os.environ["ZEUS_STREAM_FLUSH_S"]  # nobody acknowledges anything
with Publisher(job="honest", run="fired at", gpus=["index:0"]) as publisher:
    for step in publisher.steps(range(100)):
        time.sleep(0.01)
    with publisher.window("asked") as window:
        pass
    window.energy(timeout_s=0.2)
Path(sys.argv[1]).touch()
"""


def test_a_message_without_end_is_cut_before_it_takes_the_memory(both: tuple[Victim, Victim]) -> None:
    fired_at, _ = both
    broke = "sockets", "connections that broke the protocol"
    before_mb, cut = fired_at.memory_mb, int(fired_at.rows("collector")[broke])
    connection = hostile.dealer(fired_at.directory / "publish")
    part = hostile.zmtp(hostile.MORE, bytes(900_000))
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for_ever(connection, part)
    connection.close()
    until(lambda: fired_at.memory_mb < before_mb + GROWTH_MB)
    assert fired_at.alive
    assert int(fired_at.rows("collector")[broke]) > cut


def test_who_never_reads_its_replies_takes_no_memory_without_end(both: tuple[Victim, Victim]) -> None:
    _, analyzes = both
    zeus_dir = analyzes.directory
    rng = Random(3)
    before_mb = [process.memory_mb for process in both]
    readers = [
        (Sender(zeus_dir / "control", reads=False), Fetch("l", 0, 1_000)),
        (Sender(zeus_dir / "control", reads=False), AskStatus()),
        (Sender(zeus_dir / "query", reads=False), AskStatus()),
        (
            Sender(zeus_dir / "query", reads=False),
            Query("SELECT repeat('x', 1_000_000) FROM range(20)", 100, 1_000),
        ),
    ]
    for _ in range(30):
        for sender, request in readers:
            sender.send([rng.randbytes(8), codec.encode(request)])
    until(lambda: analyzes.rows("analyzer")["queries", "under way"] == "0")
    for sender, _ in readers:
        sender.close()
    for process, mb in zip(both, before_mb, strict=True):
        until(lambda process=process, mb=mb: process.memory_mb < mb + 2 * GROWTH_MB)  # type: ignore[misc]
        assert process.alive


OTHER_USER = """
import os, sys
from pathlib import Path
import anyio
from zeus_stream.transport import sockets
from zeus_stream.protocol import codec
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.events import Ack, Batch, RunEnded, RunStarted
from zeus_stream.protocol.queries import No
import anyio._backends._asyncio
os.setgroups([]); os.setgid(65534); os.setuid(65534)

async def main():
    channel = sockets.ask(sockets.context(), sockets_path)
    now = monotonic_ns()
    started = RunStarted(t_ns=now, job="job", run=sys.argv[2], rank=1, world_size=1, gpus=("index:0",),
                         pid=os.getpid(), boot_id="boot", wall_ns=0, wall_error_ns=0)
    while not channel.send(codec.encode(Batch(f"other {sys.argv[2]}", 0, (started, RunEnded(now))))):
        await anyio.sleep(0.01)
    (reply,) = await channel.receive()
    print(codec.decode(reply.parts[0], Ack, No))

sockets_path = Path(sys.argv[1]) / "publish"
anyio.run(main)
"""
"""Another user, who says that a run is over."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_join_end_or_command_a_run(zeus_dir: Path) -> None:
    with collector(zeus_dir) as running, victim(zeus_dir, "-c", TRAINER_OF_ANOTHER, ready="publish"):
        until(lambda: ("runs", "mine") in running.rows("collector"))
        for name in ("mine", "theirs"):
            ended = run(zeus_dir, "-c", OTHER_USER, zeus_dir, name)
            assert "next_sequence=2" in ended.stdout, ended.stderr
        rows = running.rows("collector")
        assert ("runs", "mine") in rows
        assert rows["publish", "messages refused"] == "0"


TRAINER_OF_ANOTHER = """
import time
from zeus_stream import Publisher
with Publisher(job="honest", run="mine", gpus=["index:0"]):
    time.sleep(60)
"""
