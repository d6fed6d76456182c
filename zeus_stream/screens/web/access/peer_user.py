"""The user of a program of this host that has connected by TCP, as the kernel says (``sock_diag``)."""

import socket
import struct
from typing import Any

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
WAIT_S = 0.1
"""For the kernel; it answers at once."""
_HEAD = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_ANY_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_UID_AT = _HEAD.size + 4 + 48 + 12
"""Offset of ``idiag_uid`` in an answer (linux/inet_diag.h): after the state, the address and three timers."""


def peer_user(ours: Any, peer: Any) -> int | None:
    """Return the uid at the other end. None: of another host. Ends are as ``getsockname`` gives them."""
    mapped = "::ffff:"
    here, there = (str(each[0]).removeprefix(mapped) for each in (ours, peer))
    family = socket.AF_INET6 if ":" in there else socket.AF_INET
    try:
        addresses = [socket.inet_pton(family, each).ljust(16, b"\0") for each in (there, here)]
        asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
        asked += _PORTS.pack(peer[1], ours[1]) + b"".join(addresses) + _ANY_COOKIE
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(WAIT_S)
            head = _HEAD.pack(_HEAD.size + len(asked), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
            kernel.sendto(head + asked, (0, 0))
            answer = kernel.recv(4_096)
    except OSError:
        return None
    if len(answer) < _UID_AT + 4 or _HEAD.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return None
    (uid,) = struct.unpack_from("=I", answer, _UID_AT)
    return int(uid)
