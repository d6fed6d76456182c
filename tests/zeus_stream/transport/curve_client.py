"""A client of CURVE, as libzmq is one, and with the steps that an attacker may take instead."""

import struct

from nacl import bindings

_NONCE = struct.Struct(">Q")
METADATA = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"


class CurveClient:
    """One connection's side of a client."""

    def __init__(self, server: bytes) -> None:
        self.public, self.secret = bindings.crypto_box_keypair()
        self._server = server
        self._transient, self._transient_secret = bindings.crypto_box_keypair()
        self._count = 0
        self._shared = self._cookie = b""
        self._server_transient = b""

    def _nonce(self) -> bytes:
        self._count += 1
        return _NONCE.pack(self._count)

    def hello(self) -> bytes:
        nonce = self._nonce()
        box = bindings.crypto_box(
            bytes(64), b"CurveZMQHELLO---" + nonce, self._server, self._transient_secret
        )
        return b"\x05HELLO\x01\x00" + bytes(72) + self._transient + nonce + box

    def initiate(self, welcome: bytes, *, vouched: bytes | None = None, cookie: bytes | None = None) -> bytes:
        """``vouched``: the secret that vouches; ``cookie``: sent instead of that of the listener."""
        opened = bindings.crypto_box_open(
            welcome[24:], b"WELCOME-" + welcome[8:24], self._server, self._transient_secret
        )
        self._server_transient, self._cookie = opened[:32], opened[32:]
        vouch = bindings.crypto_box(
            self._transient + self._server,
            b"VOUCH---" + bytes(16),
            self._server_transient,
            vouched or self.secret,
        )
        self._shared = bindings.crypto_box_beforenm(self._server_transient, self._transient_secret)
        nonce = self._nonce()
        box = bindings.crypto_box_afternm(
            self.public + bytes(16) + vouch + METADATA, b"CurveZMQINITIATE" + nonce, self._shared
        )
        return b"\x08INITIATE" + (cookie or self._cookie) + nonce + box

    def message(self, content: bytes, *, command: bool = False) -> bytes:
        nonce = self._nonce()
        box = bindings.crypto_box_afternm(
            bytes((2 * command,)) + content, b"CurveZMQMESSAGEC" + nonce, self._shared
        )
        return b"\x07MESSAGE" + nonce + box

    def opened(self, message: bytes) -> bytes:
        return bindings.crypto_box_open_afternm(
            message[16:], b"CurveZMQMESSAGES" + message[8:16], self._shared
        )[1:]
