"""Sockets that a test opens, and that are closed after it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from zeus_stream.transport import sockets
from zeus_stream.transport.endpoints import Address
from zeus_stream.transport.listening.listener import Listener

C = TypeVar("C", sockets.Channel, sockets.Asking, Listener)


class Sockets:
    """The functions of `sockets` over one context; closes what it opened."""

    def __init__(self) -> None:
        self._context = sockets.context()
        self._opened: list[sockets.Channel | Listener] = []

    def listen(
        self, path: Path, *, feed: bool = False, mode: int = 0o600, group: str | None = None
    ) -> Listener:
        return self._keep(Listener(path, feed=feed, mode=mode, group=group))

    def ask(self, address: Address) -> sockets.Asking:
        return self._keep(sockets.ask(self._context, address))

    def follow(self, address: Address, topic: str = "") -> sockets.Channel:
        return self._keep(sockets.follow(self._context, address, topic))

    def _keep(self, channel: C) -> C:
        self._opened.append(channel)
        return channel

    def close(self) -> None:
        for channel in self._opened:
            channel.close()
        self._context.destroy(linger=0)


@pytest.fixture
def opened() -> Iterator[Sockets]:
    with closing(Sockets()) as made:
        yield made
