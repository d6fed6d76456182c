"""Links between the processes of a setup, which can be cut: a forwarder of sockets in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

CHUNK = 65_536


class Network:
    """The links of a setup, and the thread that forwards them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def tcp(self, port: int) -> "Link":
        """Return a link to a port of this host."""
        link = Link(self, ("127.0.0.1", port))
        self.wait(link.open_tcp())
        return link

    def unix(self, directory: Path, target: Path) -> "Link":
        """Return a link to a socket file; it listens at a file of that name in a directory."""
        link = Link(self, target)
        self.wait(link.open_unix(directory / target.name))
        return link

    def wait(self, what: Coroutine[Any, Any, None]) -> None:
        """Run something in the thread of the links, and wait for it."""
        asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def close(self) -> None:
        """End all links."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class Link:
    """A forwarder that can be cut."""

    def __init__(self, network: Network, target: tuple[str, int] | Path) -> None:
        """For `Network`."""
        self._network = network
        self._target = target
        self._whole = asyncio.Event()
        self._whole.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open_tcp(self) -> None:
        """Listen at a free port."""
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def open_unix(self, path: Path) -> None:
        """Listen at a socket file."""
        self._server = await asyncio.start_unix_server(self._forward, path)

    def cut(self, *, silent: bool) -> None:
        """Let nothing through. ``silent``: connections stay, and what waits goes on later; else they end."""
        self._network.wait(self._cut(silent=silent))

    def mend(self) -> None:
        """Let everything through again."""
        self._network.wait(self._mend())

    async def _cut(self, *, silent: bool) -> None:
        self._whole.clear()
        if not silent:
            for writer in tuple(self._writers):
                writer.transport.abort()

    async def _mend(self) -> None:
        self._whole.set()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            if isinstance(self._target, Path):
                there, back = await asyncio.open_unix_connection(self._target)
            else:
                there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        self._writers -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort() if writer.transport.is_closing() else writer.close()
