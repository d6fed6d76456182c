"""Attackers of a host, each a process that runs until it is ended. All may be there before our services.

    many connections      to publish and position, without a byte; to the ports for other hosts, without a key
    many sessions         at publish, under the names of our runs and jobs
    idle connections      to the page, without a token
    files handed over     a FIFO in /dev/shm under the name of a mark of ours
    the working directory modules with the names of all that our commands import

As root they are another user; otherwise our own, which has fewer rights to be kept from.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from collectors.log.boot_mark import MEMORY, PREFIX
from tests.environment import run, start
from tests.processes.connection_flood import OTHER_USER

_APART = """
import encodings.idna, os, socket, sys, time
def become_other():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setuid(int(sys.argv[1]))
"""
IDLE = f"""{_APART}
become_other()
held = []
while True:
    with_head = len(held) % 2
    try:
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=1))
        if with_head:
            held[-1].sendall(b"GET / HTTP/1.1\\r\\nHost: loc")
    except OSError:
        pass
    if len(held) > 300:
        held.pop(0).close()
    time.sleep(0.01)
"""
"""Holds connections to a page, half of them with the beginning of a request."""
SESSIONS = f"""{_APART}
import random, zmq
from zeus_stream.clock import anchor, boot_id
from zeus_stream.protocol import codec
from zeus_stream.protocol.events import Batch, RunStarted
boot = boot_id()
become_other()
context, opened, rng = zmq.Context(), [], random.Random(0)
for number in range(10**9):
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect("ipc://" + sys.argv[2])
    opened.append(socket)
    now, name = anchor(), f"run-{{rng.randrange(40)}}"
    begun = RunStarted(t_ns=now.monotonic_ns, job=name, run=name, rank=0, world_size=1, gpus=(),
        pid=os.getpid(), boot_id=boot, wall_ns=now.wall_ns, wall_error_ns=now.error_ns)
    socket.send(codec.encode(Batch(f"theirs-{{os.getpid()}}-{{number}}", 0, (begun,))), zmq.NOBLOCK)
    if len(opened) > 200:
        opened.pop(0).close()
    time.sleep(0.02)
"""
"""Opens sessions without end, under names that runs of ours have or will have."""
HAND_OVER = f"""{_APART}
become_other()
os.mkfifo(sys.argv[2], 0o666)
"""


@contextmanager
def attacker(script: str, *arguments: object) -> Iterator[None]:
    """Run a script until the end of the block. It may not end by itself."""
    running = start(Path("/nowhere"), "-c", script, OTHER_USER, *arguments)
    try:
        yield
        assert running.poll() is None, running.communicate()[1]
    finally:
        running.kill()
        running.communicate()


@contextmanager
def fifo_in_place_of_a_mark(log: Path) -> Iterator[None]:
    """Put a FIFO of another user where a collector keeps the end of this log in memory."""
    mark = MEMORY / f"{PREFIX}{os.geteuid()}-{sha256(str(log.absolute()).encode()).hexdigest()[:16]}"
    run(Path("/nowhere"), "-c", HAND_OVER, OTHER_USER, mark).check_returncode()
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            mark.unlink()
