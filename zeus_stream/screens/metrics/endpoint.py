"""The HTTP endpoint that Prometheus scrapes: GET /metrics, and nothing that changes anything."""

import hmac
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, socket

from zeus_stream.errors import SettingsError, UnreachableError
from zeus_stream.screens.metrics.prometheus import CONTENT_TYPE
from zeus_stream.transport.endpoints import host_and_port, is_loopback

MAX_CONNECTIONS = 16
"""At once; one more waits."""
REQUEST_S = 5.0
"""Longest time for a request to arrive."""
PAGE = "zeus-stream metrics: see /metrics\n"


class Endpoint(ThreadingHTTPServer):
    """Answers ``/metrics`` and ``/-/ready``."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], answer: Callable[[], str], token: str | None) -> None:
        """Listen; port 0 takes a free one. ``token``: that a request has to bear. Raises UnreachableError."""
        self.answer = answer
        self.token = token
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        if ":" in address[0]:
            self.address_family = AF_INET6
        try:
            super().__init__(address, _Handler)
        except OSError as wrong:
            raise UnreachableError(
                f"metrics: could not listen at {address[0]}:{address[1]}: {wrong.strerror or wrong}."
                " Name another address with --listen."
            ) from wrong

    def process_request(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        self._places.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Leave a client that went away to itself."""


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint
    timeout = REQUEST_S
    server_version = "zeus-stream"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._allowed():
            self._send(HTTPStatus.UNAUTHORIZED, "metrics: could not be read: the token is not right.\n")
        elif path == "/metrics":
            self._send(HTTPStatus.OK, self.server.answer(), CONTENT_TYPE)
        elif path in {"/", "/-/ready"}:
            self._send(HTTPStatus.OK, PAGE)
        else:
            self._send(HTTPStatus.NOT_FOUND, PAGE)

    def _allowed(self) -> bool:
        if self.server.token is None:
            return True
        given = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _send(self, status: HTTPStatus, body: str, kind: str = "text/plain; charset=utf-8") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name of the base class)
        """Write no line for each scrape."""


def address_of(text: str, token: str | None) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``. Raises SettingsError.

    Without a token only addresses of this host are accepted: labels name jobs and hosts.
    """
    if (found := host_and_port(text)) is None:
        raise SettingsError(
            f"--listen {text}: could not be used: expected HOST:PORT, such as 127.0.0.1:9464."
        )
    host, port = found
    if token is None and not is_loopback(host):
        raise SettingsError(
            f"--listen {text}: could not be used: other hosts could read the names of jobs and hosts."
            " Give a token with --token-file, or listen at 127.0.0.1."
        )
    return host.strip("[]"), port
