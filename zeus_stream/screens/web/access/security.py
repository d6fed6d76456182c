"""Decides which requests are answered: by the host that they name and the token that they show. Pure.

Every user of a GPU host reaches a port on loopback, and every page of a browser can send a request there. So
each request needs the token, and names a host that is ours (against DNS rebinding).
"""

import hmac
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Literal

from msgspec import Struct

MOST_WRONG = 10
"""Wrong tokens a minute that are answered as wrong. Later ones have to wait."""
MINUTE_S = 60.0
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer. There is no CORS header: no other origin may read an answer."""
Verdict = Literal[
    "granted", "log in", "no token", "wrong token", "too many", "wrong host", "two lengths", "only SQL"
]
"""``log in``: the token was in the address; a cookie and the same address without it follow."""


class Credentials(Struct, frozen=True, kw_only=True):
    """The host and the tokens of a request."""

    host: str
    token: str | None
    """Of the address."""
    bearer: str | None
    cookie: str | None


class JobKey(Struct, frozen=True):
    """A token that may ask SQL about some jobs, and nothing else."""

    name: str
    token: str
    jobs: tuple[str, ...]
    """Patterns such as ``team-a-*``."""


class WebSecurity:
    """Judges requests. ``token`` None: anybody who can open the socket may ask."""

    def __init__(self, token: str | None, hosts: frozenset[str], keys: Sequence[JobKey] = ()) -> None:
        self._token = token
        self._keys = tuple(keys)
        self._hosts = hosts
        self._wrong_s: deque[float] = deque(maxlen=MOST_WRONG)
        self.cookie = "zeus-stream-" + sha256((token or "").encode()).hexdigest()[:8]
        """Name of the cookie. Servers on other ports of a host have other tokens, so other names."""

    def judge(self, shown: Credentials, now_s: float) -> Verdict:
        """Return the verdict. The right token is always granted, or any user could lock the owner out."""
        if not self.is_our_host(shown.host):
            return "wrong host"
        if self._token is None:
            return "granted"
        if shown.token is not None and self._is_right(shown.token):
            return "log in"
        for given in (shown.bearer, shown.cookie):
            if given is not None and self._is_right(given):
                return "granted"
        if shown.token is None and shown.bearer is None:
            return "no token"  # a cookie of an earlier token is no guess
        while self._wrong_s and now_s - self._wrong_s[0] > MINUTE_S:
            self._wrong_s.popleft()
        if len(self._wrong_s) == MOST_WRONG:
            return "too many"
        self._wrong_s.append(now_s)
        return "wrong token"

    def key_of(self, shown: Credentials) -> JobKey | None:
        """Return the key that a program shows as its bearer token. None: it is none of them."""
        if shown.bearer is None or not self.is_our_host(shown.host):
            return None
        given = shown.bearer.encode()
        right = [key for key in self._keys if hmac.compare_digest(given, key.token.encode())]
        return right[0] if right else None

    def is_our_host(self, host: str) -> bool:
        """Tell whether a Host header names this server, whatever its port. An empty set allows every name."""
        if not self._hosts:
            return True
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name.lower().rstrip(".") in self._hosts

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())
