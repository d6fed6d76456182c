"""Links between the processes of a setup, which can be cut: forwarders of sockets."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

CHUNK = 65_536


class Link:
    """A forwarder that can be cut, in a thread of its own."""

    def __init__(self, target: int | Path, path: Path | None = None) -> None:
        """Args: ``target``: a port of this host or a socket file. ``path``: listens there, else at a port."""
        self._target = target
        self._whole = asyncio.Event()
        self._whole.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(self._listen(path), self._loop)
        self.port = listening.result()

    async def _listen(self, path: Path | None) -> int:
        if path is not None:
            self._server = await asyncio.start_unix_server(self._forward, path)
            return 0
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self, *, silent: bool) -> None:
        """Let nothing through. ``silent``: connections stay, and what waits goes on later; else they end."""
        self._loop.call_soon_threadsafe(self._cut, silent)

    def mend(self) -> None:
        """Let everything through again."""
        self._loop.call_soon_threadsafe(self._whole.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _cut(self, silent: bool) -> None:  # noqa: FBT001  (the loop gives no names)
        self._whole.clear()
        for writer in () if silent else tuple(self._writers):
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            if isinstance(self._target, Path):
                there, back = await asyncio.open_unix_connection(self._target)
            else:
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
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
