"""The listener's side of CURVE against a client that keeps to it, and against those that do not."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl import bindings

from tests.zeus_stream.transport.curve_client import METADATA, CurveClient
from zeus_stream.errors import MalformedError
from zeus_stream.transport.listening import zmtp
from zeus_stream.transport.listening.curve_server import CurveServer

PUBLIC, SECRET = bindings.crypto_box_keypair()
OTHER_PUBLIC, OTHER_SECRET = bindings.crypto_box_keypair()


def met(*, let_in: bool = True) -> tuple[CurveClient, CurveServer]:
    client = CurveClient(PUBLIC)
    names = {client.public: "anna"} if let_in else {}
    return client, CurveServer(SECRET, names.get)


def agreed() -> tuple[CurveClient, CurveServer]:
    client, server = met()
    welcome, _ = server.answer(client.hello(), METADATA)
    assert server.answer(client.initiate(welcome), METADATA)[1] == METADATA
    assert (server.known, server.key) == (True, "anna")
    return client, server


@given(st.lists(st.binary(max_size=2_000), max_size=5))
def test_messages_are_opened_as_they_were_sealed(contents: list[bytes]) -> None:
    client, server = agreed()
    for content in contents:
        assert server.open(client.message(content)) == (0, content)
        assert client.opened(server.seal(1, content)) == content


def test_a_key_that_is_not_let_in_is_told_so_and_gets_no_further() -> None:
    client, server = met(let_in=False)
    welcome, _ = server.answer(client.hello(), METADATA)
    assert server.answer(client.initiate(welcome), METADATA) == (b"\x05ERROR\x03400", b"")
    assert (server.refused, server.key) == (True, None)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(CurveClient(OTHER_PUBLIC).hello(), id="made for another key"),
        pytest.param(b"\x08INITIATE" + bytes(300), id="INITIATE first"),
        pytest.param(CurveClient(PUBLIC).hello()[:112] + bytes(88), id="a nonce of 0"),
        pytest.param(b"\x05HELLO" + bytes(194), id="the point 0"),
    ],
)
def test_who_does_not_know_our_key_is_refused(command: bytes) -> None:
    _, server = met()
    with pytest.raises(MalformedError):
        server.answer(command, METADATA)
    assert not server.known


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(lambda c, _: c.hello(), id="HELLO twice"),
        pytest.param(lambda c, w: c.initiate(w, vouched=OTHER_SECRET), id="the key of somebody else"),
        pytest.param(lambda c, w: c.initiate(w, cookie=bytes(96)), id="another cookie"),
        pytest.param(lambda c, w: c.initiate(w)[:-1], id="cut off"),
    ],
)
def test_who_knows_our_key_alone_is_refused(command: Callable[[CurveClient, bytes], bytes]) -> None:
    client, server = met()
    welcome, _ = server.answer(client.hello(), METADATA)
    sent = command(client, welcome)
    with pytest.raises(MalformedError):
        server.answer(sent, METADATA)
    assert server.key is None


def test_a_handshake_is_not_begun_again() -> None:
    client, server = met()
    welcome, _ = server.answer(client.hello(), METADATA)
    initiate = client.initiate(welcome)
    server.answer(initiate, METADATA)
    for again in (initiate, client.hello()):
        with pytest.raises(MalformedError):
            server.answer(again, METADATA)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_message_that_was_changed_or_comes_twice_is_refused(at: int, flip: int) -> None:
    client, server = agreed()
    message = client.message(b"a message")
    bent = bytearray(message)
    bent[at % len(bent)] ^= flip
    with pytest.raises(MalformedError):
        server.open(bytes(bent))
    client, server = agreed()
    message = client.message(b"a message")
    server.open(message)
    with pytest.raises(MalformedError):
        server.open(message)


def test_a_client_that_asks_for_a_sign_of_life_gets_one() -> None:
    """libzmq ends a connection over which nothing came for `SILENCE_MS`."""
    client, server = agreed()
    reader = zmtp.ZmtpReader("ROUTER", 1_000, server)
    reader.ready = True
    reader.feed(zmtp.CURVE_GREETING)
    for _ in range(2):
        reader.feed(b"".join(zmtp.encode((client.message(b"\x04PING\0\x0acontext", command=True),))))
        assert reader.next() is None
    *_, pong = reader.replies
    assert client.opened(pong[2:]) == b"\x04PONGcontext"
