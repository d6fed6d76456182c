"""The ASGI layer in front of all routes: host, token, security headers."""

import re
from time import monotonic
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zeus_stream.screens.web.access.security import HEADERS, Credentials, Verdict, WebSecurity
from zeus_stream.screens.web.access.web_connections import GRANTED
from zeus_stream.screens.web.page_frame import notice

OPEN_PATHS = ("/-/healthy", "/-/ready")
"""Say only whether the server works; probes have neither token nor host name."""
SQL_PATH = "/api/sql"
"""All that a key of some jobs may ask."""
JOBS = "zeus_stream.jobs"
"""In the scope of a request with such a key: the patterns of its jobs."""
REFUSALS: dict[Verdict, tuple[int, str]] = {
    "no token": (401, "This page needs its token. Open the address that `zeus-stream web --url` prints."),
    "wrong token": (401, "This token is wrong. Open the address that `zeus-stream web --url` prints."),
    "too many": (429, "Too many wrong tokens. Wait a minute, then open the right address."),
    "wrong host": (
        403, "This server has no such name. Start it with `zeus-stream web --host-name NAME` to allow it.",
    ),
    "only SQL": (403, f"This key may ask {SQL_PATH} alone."),
    "two lengths": (400, "This request gives two lengths of its body."),
}  # fmt: skip


TEXTS = ("text/", "application/json")
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
"""Control characters in UTF-8, but for tab and line feed."""


class Text:
    """The body of an answer as it may be written to a terminal: control characters become question marks."""

    def __init__(self) -> None:
        self.is_text = False
        """Compressed bytes are no text; the files of the pages are, and hold no names."""
        self._held = b""
        """The first byte of a character whose second comes with the next part."""

    def printable(self, part: Message) -> bytes:
        """Return a part of the body; over all parts, it has as many bytes as before."""
        body = self._held + bytes(part.get("body", b""))
        self._held = b""
        if not self.is_text:
            return body
        if part.get("more_body", False) and body.endswith(b"\xc2"):
            self._held, body = body[-1:], body[:-1]
        return _CONTROL.sub(lambda found: b"?" * len(found[0]), body)


class Doorway:
    """Answers what the gatekeeper refuses, and passes the rest on."""

    def __init__(self, app: ASGIApp, gatekeeper: WebSecurity, *, secure: bool = False) -> None:
        """``secure``: the cookie is for TLS only."""
        self._app = app
        self._gatekeeper = gatekeeper
        self._secure = secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no WebSocket is served: the server closes it

        text = Text()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": text.printable(message)}
            elif message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                is_plain = "content-encoding" not in headers
                text.is_text = is_plain and headers.get("content-type", "").startswith(TEXTS)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if _lengths(scope) > 1:  # a proxy in front may read another end of the request than this server
            await _refusal("two lengths")(scope, receive, send_with_headers)
            return
        if scope["path"].removeprefix(scope.get("root_path", "")) in OPEN_PATHS:
            await self._app(scope, receive, send_with_headers)
            return
        shown = self._shown(scope)
        if (key := self._gatekeeper.key_of(shown)) is not None:
            scope[GRANTED], scope[JOBS] = True, key.jobs
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            answer = self._app if path == SQL_PATH else _refusal("only SQL")
            await answer(scope, receive, send_with_headers)
            return
        verdict = self._gatekeeper.judge(shown, monotonic())
        scope[GRANTED] = verdict in ("granted", "log in")
        if verdict == "granted":
            await self._app(scope, receive, send_with_headers)
        else:
            answer = self._log_in(scope) if verdict == "log in" else _refusal(verdict)
            await answer(scope, receive, send_with_headers)

    def _shown(self, scope: Scope) -> Credentials:
        headers = Headers(scope=scope)
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        return Credentials(
            host=headers.get("host", ""), token=given.get("token"),
            bearer=bearer.strip() if kind.lower() == "bearer" else None,
            cookie=cookie_parser(headers.get("cookie", "")).get(self._gatekeeper.cookie),
        )  # fmt: skip

    def _log_in(self, scope: Scope) -> Response:
        """Keep the token in a cookie, and send the browser to the same page without it."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(pairs)["token"]
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        # Relative to the page: a proxy in front may have moved it.
        last = scope.get("raw_path", b"").decode("latin-1").rpartition("/")[2]
        answer = RedirectResponse(f"./{last}" + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(
            self._gatekeeper.cookie, token, httponly=True, samesite="strict", secure=self._secure,
            path=scope.get("root_path") or "/",
        )  # fmt: skip
        return answer


def _lengths(scope: Scope) -> int:
    return sum(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


def _refusal(verdict: Verdict) -> Response:
    status, text = REFUSALS[verdict]
    named = {400: {"Connection": "close"}, 401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "60"}}
    headers = named.get(status)
    return HTMLResponse(notice(text), status, headers)
