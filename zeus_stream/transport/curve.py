"""CURVE keys: made by ZeroMQ, in the text form (Z85) in which files keep them."""

import zmq
from zmq.utils import z85

from zeus_stream.transport.keys import Pair


def new_keys() -> Pair:
    """Return a new pair of CURVE keys."""
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())


def raw_key(text: str) -> bytes:
    """Return the 32 bytes of a key."""
    return z85.decode(text)


def text_key(raw: bytes) -> str:
    """Return the text of a key of 32 bytes."""
    return z85.encode(raw).decode()
