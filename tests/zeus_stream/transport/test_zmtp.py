import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import hostile
from zeus_stream.errors import MalformedError
from zeus_stream.transport.listening import zmtp

MOST = 1_000
HANDSHAKE = hostile.GREETING + hostile.ready(Socket_Type=b"DEALER")
MESSAGES = st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=3), max_size=6)


def read(reader: zmtp.ZmtpReader) -> list[list[bytes]]:
    messages = []
    while (message := reader.next()) is not None or reader.behind:
        if message is not None:
            messages.append(message)
    return messages


@given(MESSAGES, st.lists(st.integers(1, 50), min_size=1, max_size=10))
def test_messages_are_the_same_however_their_bytes_come(
    messages: list[list[bytes]], sizes: list[int]
) -> None:
    data = HANDSHAKE + b"".join(piece for message in messages for piece in zmtp.encode(message))
    reader, received, at, turn = zmtp.ZmtpReader("ROUTER", MOST), list[list[bytes]](), 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        reader.feed(data[at : at + size])
        received += read(reader)
        at, turn = at + size, turn + 1
    assert received == messages
    assert reader.ready
    assert reader.held_bytes == 0


@given(st.sampled_from([b"", HANDSHAKE]), st.binary(max_size=400))
def test_any_bytes_are_read_or_refused_and_no_more_is_kept(before: bytes, data: bytes) -> None:
    reader = zmtp.ZmtpReader("ROUTER", MOST)
    reader.feed(before + data)
    try:
        read(reader)
    except MalformedError:
        return
    assert reader.held_bytes <= len(data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        pytest.param("ROUTER", b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param("ROUTER", hostile.GREETING[:12] + b"CURVE".ljust(52, b"\0"), id="another mechanism"),
        pytest.param("ROUTER", hostile.GREETING + hostile.ready(Socket_Type=b"SUB"), id="a SUB asks"),
        pytest.param("PUB", HANDSHAKE, id="a DEALER follows"),
        pytest.param("ROUTER", hostile.GREETING + hostile.zmtp(0, b"early"), id="no READY"),
        pytest.param("ROUTER", HANDSHAKE + hostile.zmtp(0, bytes(MOST + 1)), id="a part that is too large"),
        pytest.param("ROUTER", hostile.GREETING + hostile.zmtp(4, b"\x05READY\xff"), id="a property cut off"),
    ],
)
def test_who_breaks_the_protocol_is_refused(kind: zmtp.Kind, data: bytes) -> None:
    reader = zmtp.ZmtpReader(kind, MOST)
    reader.feed(data)
    with pytest.raises(MalformedError):
        read(reader)
