"""CURVE of a listener (rfc.zeromq.org/spec/26): one connection's handshake and boxes, by libsodium. Pure.

    client     HELLO      made for our key: only who was given it gets further
    listener   WELCOME    a key for this connection
    client     INITIATE   the key of the client, and a vouch that it is the client's
    listener   READY, or ERROR if the key is not let in; then MESSAGE, both ways, each with a higher nonce

A client that does not keep to this is refused with `MalformedError`.
"""

import struct
from collections.abc import Callable

from nacl import bindings
from nacl.exceptions import CryptoError

from zeus_stream.errors import MalformedError

_HELLO, _WELCOME, _INITIATE, _MESSAGE = b"\x05HELLO", b"\x07WELCOME", b"\x08INITIATE", b"\x07MESSAGE"
_HELLO_BYTES = 200
_COOKIE_BYTES = 96
_NONCE = struct.Struct(">Q")


class CurveServer:
    """The listener's side of one connection."""

    __slots__ = ("_admit", "_client_transient", "_cookie", "_nonce", "_peer_nonce", "_secret", "_shared",
                 "_transient", "key", "known", "refused")  # fmt: skip

    def __init__(self, secret: bytes, admit: Callable[[bytes], str | None]) -> None:
        """``admit`` returns the name of a client's public key, or None if it is not let in."""
        self.known = False
        """The client has shown that it was given our key."""
        self.key: str | None = None
        """Name of the client's key, once it is let in."""
        self.refused = False
        """Its key is not let in."""
        self._secret, self._admit = secret, admit
        self._transient = self._cookie = self._client_transient = self._shared = b""
        self._nonce, self._peer_nonce = 1, 0

    def answer(self, command: bytes, metadata: bytes) -> tuple[bytes, bytes]:
        """Return the reply to a command, and the metadata once it is let in. Raises MalformedError."""
        try:
            if not self.known and command.startswith(_HELLO) and len(command) == _HELLO_BYTES:
                return self._welcome(command), b""
            if self.known and not self._shared and command.startswith(_INITIATE):
                return self._let_in(command, metadata)
        except CryptoError:
            pass
        raise MalformedError("connection: could not agree on keys.")

    def _welcome(self, hello: bytes) -> bytes:
        client = hello[80:112]
        for_hello = bindings.crypto_box_beforenm(client, self._secret)
        nonce = self._counted(hello[112:120])
        bindings.crypto_box_open_afternm(hello[120:], b"CurveZMQHELLO---" + nonce, for_hello)
        public, self._transient = bindings.crypto_box_keypair()
        self._client_transient, self._cookie, self.known = client, bindings.randombytes(_COOKIE_BYTES), True
        nonce = bindings.randombytes(16)
        box = bindings.crypto_box_afternm(public + self._cookie, b"WELCOME-" + nonce, for_hello)
        return _WELCOME + nonce + box

    def _let_in(self, initiate: bytes, metadata: bytes) -> tuple[bytes, bytes]:
        at = len(_INITIATE) + _COOKIE_BYTES
        if initiate[len(_INITIATE) : at] != self._cookie:
            raise CryptoError
        shared = bindings.crypto_box_beforenm(self._client_transient, self._transient)
        nonce = self._counted(initiate[at : at + 8])
        opened = bindings.crypto_box_open_afternm(initiate[at + 8 :], b"CurveZMQINITIATE" + nonce, shared)
        public, vouch_nonce, vouch = opened[:32], opened[32:48], opened[48:128]
        if len(opened) < 128:
            raise CryptoError
        vouched = bindings.crypto_box_open(vouch, b"VOUCH---" + vouch_nonce, public, self._transient)
        if vouched != self._client_transient + bindings.crypto_scalarmult_base(self._secret):
            raise CryptoError
        self._shared, self.key = shared, self._admit(public)
        self.refused = self.key is None
        if self.refused:
            return b"\x05ERROR\x03400", b""
        nonce = self._next_nonce()
        box = bindings.crypto_box_afternm(metadata, b"CurveZMQREADY---" + nonce, shared)
        return b"\x05READY" + nonce + box, opened[128:]

    def open(self, body: bytes) -> tuple[int, bytes]:
        """Return flags and content of a MESSAGE. Raises MalformedError."""
        try:
            nonce = self._counted(body[8:16] if body.startswith(_MESSAGE) else b"")
            box = bindings.crypto_box_open_afternm(body[16:], b"CurveZMQMESSAGEC" + nonce, self._shared)
        except CryptoError as wrong:
            raise MalformedError("message: could not be opened: its seal is not that of this key.") from wrong
        return box[0] if box else 0, box[1:]

    def seal(self, flags: int, content: bytes) -> bytes:
        """Return a MESSAGE."""
        nonce = self._next_nonce()
        box = bindings.crypto_box_afternm(
            bytes((flags,)) + content, b"CurveZMQMESSAGES" + nonce, self._shared
        )
        return _MESSAGE + nonce + box

    def _next_nonce(self) -> bytes:
        nonce = _NONCE.pack(self._nonce)
        self._nonce += 1
        return nonce

    def _counted(self, nonce: bytes) -> bytes:
        """Return a nonce of the client that is higher than all before: no message is taken twice."""
        if len(nonce) < 8 or (number := _NONCE.unpack(nonce)[0]) <= self._peer_nonce:
            raise CryptoError
        self._peer_nonce = number
        return nonce
