"""Notices to systemd: a service is ready, alive, or stopping (``sd_notify(3)``)."""

import os
from collections.abc import Mapping
from contextlib import suppress
from socket import AF_UNIX, SOCK_DGRAM, socket

import anyio


def notify(state: str) -> None:
    """Send a state such as ``READY=1`` to systemd, if it started this process; it notices a lost one."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM) as door:
        door.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)


def watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Return the time within which systemd expects a notice of this process, in s. None: it expects none."""
    wanted = environ.get("WATCHDOG_USEC", "")
    if not wanted.isdecimal() or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(wanted) / 1e6


async def keep_alive() -> None:
    """Send notices for as long as the event loop runs: systemd ends one that hangs, and starts it again."""
    if (within_s := watchdog_s(os.environ)) is None:
        return
    while True:
        notify("WATCHDOG=1")
        await anyio.sleep(within_s / 3)
