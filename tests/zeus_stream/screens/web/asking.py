"""An HTTP client without a network: it calls an ASGI application."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import anyio
from starlette.types import ASGIApp, Message

HOST = "localhost:8466"


@dataclass
class Answered:
    """An answer of the application."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


def _scope(address: str, headers: Mapping[str, str], method: str) -> dict[str, Any]:
    parts = urlsplit(address)
    given = {"host": HOST, **headers}
    from urllib.parse import unquote

    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(parts.path),
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8466),
    }


async def ask(
    app: ASGIApp, address: str, *, method: str = "GET", most: int = 2**63, **headers: str
) -> Answered:
    """Return the answer to one request. After ``most`` parts of its body, the client goes away."""
    answered, gone, sent = Answered(), anyio.Event(), 0

    async def receive() -> Message:
        nonlocal sent
        sent += 1
        if sent == 1:
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    parts = 0

    async def send(message: Message) -> None:
        nonlocal parts
        if message["type"] == "http.response.start":
            answered.status = message["status"]
            answered.headers = [(name.decode(), value.decode()) for name, value in message["headers"]]
        else:
            answered.body += message.get("body", b"")
            parts += 1
            if parts >= most:
                gone.set()

    names = {name.replace("_", "-"): value for name, value in headers.items()}
    await app(_scope(address, names, method), receive, send)
    return answered


@asynccontextmanager
async def running(feed: Any) -> AsyncIterator[None]:
    """Run a feed while the block runs."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feed.run)
        try:
            yield
        finally:
            feed.close()
            tasks.cancel_scope.cancel()  # a question under way has nobody to answer it
