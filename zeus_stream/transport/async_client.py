"""Asks a running analyzer or collector again and again, from an event loop. It reconnects by itself."""

from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

import anyio

from zeus_stream.errors import RefusedError
from zeus_stream.paths import trusted
from zeus_stream.protocol import codec
from zeus_stream.protocol.queries import Cancel, Query, QueryDone, Request
from zeus_stream.protocol.snapshots import AskNow, Snapshot
from zeus_stream.transport import sockets
from zeus_stream.transport.client import reply_of, table_of, too_many
from zeus_stream.transport.endpoints import Address

if TYPE_CHECKING:
    import pyarrow as pa

M = TypeVar("M")
CONNECT_S = 0.02
"""Between two tries to send while the connection is not there yet."""
MAX_WAITING = 100
"""Requests of one client under way; one more is refused."""


class _WaitingRequest:
    """One request under way."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.parts: list[bytes] = []


class AsyncClient:
    """A connection to one process. A request that is cancelled, or too slow, is cancelled there as well."""

    def __init__(self, address: Address, process: Literal["analyzer", "collector"]) -> None:
        """Prepare a connection. Nothing is opened before the ``async with`` block."""
        self._address = address
        self._process: Literal["analyzer", "collector"] = process
        self._numbers = count(1)
        self._waiting: dict[bytes, _WaitingRequest] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        context = sockets.context()
        self._open.callback(context.destroy, linger=0)
        self._channel = sockets.ask(context, self._address)
        self._open.callback(self._channel.close)
        tasks = await self._open.enter_async_context(anyio.create_task_group())
        self._open.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(self._receive)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        return await self._open.__aexit__(kind, wrong, where)

    async def ask_now(self, host: str | None = None, timeout_s: float = 2.0) -> Snapshot:
        """Return the live state. Raises UnreachableError, RefusedError."""
        reply, _ = await self.request(AskNow(host), Snapshot, timeout_s)
        return reply

    async def sql(self, query: str, *, max_rows: int = 10_000, timeout_s: float = 10.0) -> "pa.Table":
        """Return the answer to one SQL statement. Raises UnreachableError, RefusedError."""
        asked = Query(query, max_rows, round(timeout_s * 1000))
        done, parts = await self.request(asked, QueryDone, timeout_s + 2)
        if done.truncated:
            raise too_many(max_rows)
        return table_of(parts)

    async def request(self, message: Request, expected: type[M], timeout_s: float) -> tuple[M, list[bytes]]:
        """Return the reply, and the parts behind it. Raises UnreachableError and RefusedError."""
        if len(self._waiting) >= MAX_WAITING:
            raise RefusedError(
                f"{self._process}: was not asked: {MAX_WAITING} requests wait. Ask again later."
            )
        correlation = next(self._numbers).to_bytes(8, "big")
        waiting = self._waiting[correlation] = _WaitingRequest()
        try:
            with anyio.move_on_after(timeout_s):
                while not self._send(correlation, message):  # noqa: ASYNC110  (ZeroMQ connects in a thread)
                    await anyio.sleep(CONNECT_S)
                await waiting.answered.wait()
        finally:
            del self._waiting[correlation]
            if isinstance(message, Query) and not waiting.parts:
                self._channel.send(correlation, codec.encode(Cancel(correlation)))
        return reply_of(waiting.parts, expected, self._process, self._address)

    def _send(self, correlation: bytes, message: Request) -> bool:
        """Send a request. False: nothing is there yet. Raises RefusedError: this key is not let in."""
        if (trouble := self._channel.trouble) is not None:
            raise RefusedError(trouble)
        there = not isinstance(self._address, Path) or (self._address.exists() and trusted(self._address))
        return there and self._channel.send(correlation, codec.encode(message))

    async def _receive(self) -> None:
        while True:
            for received in await self._channel.receive():
                correlation, *parts = received.parts
                waiting = self._waiting.get(correlation)
                if waiting is not None and parts:
                    waiting.parts = parts
                    waiting.answered.set()
