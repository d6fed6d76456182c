"""Tabs that show the live page: readers of its stream."""

import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import environment


@contextmanager
def served(where: Path, *arguments: str) -> Iterator[str]:
    """Serve the page of a setup; give its address, with the token."""
    command = [sys.executable, "-m", "zeus_stream", "web", "--listen", "127.0.0.1:0", *arguments]
    server = subprocess.Popen(command, env=environment(where), stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        yield next(line for line in server.stderr if "token=" in line).split()[-1]
    finally:
        server.terminate()
        server.wait(20)


@contextmanager
def readers(address: str, count: int) -> Iterator[None]:
    """Read the live stream of the page as so many tabs do."""
    stop = threading.Event()
    host, _, token = address.removeprefix("http://").partition("/?token=")

    def read() -> None:
        connection = http.client.HTTPConnection(host, timeout=30)
        connection.request("GET", "/api/events?html", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        while not stop.is_set() and answer.readline():
            pass
        connection.close()

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def tabs(where: Path, count: int) -> Iterator[None]:
    """Serve the page and show it in so many tabs."""
    if not count:
        yield
        return
    with served(where) as address, readers(address, count):
        yield
