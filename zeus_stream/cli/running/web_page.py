"""The web page beside a training: started for `zeus-stream run --web`, ended with it."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO

from zeus_stream.cli.running.signals import Signals
from zeus_stream.clock import monotonic_ns
from zeus_stream.service_packages import python_child

STARTS_S = 20.0
STOPS_S = 3.0
LOOK_S = 0.02
OPEN = "web: open "
"""The line of the page that has its address begins so."""


@contextmanager
def web_page(environment: Mapping[str, str], signals: Signals, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the page at a free port of this host while the block runs, and print its address.

    What prevents it is printed, and prevents nothing else.
    """
    # It asks the analyzer. A named archive would be shown as a file, which is not live.
    clean = {name: value for name, value in environment.items() if name != "ZEUS_STREAM_ARCHIVE"}
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(  # noqa: S603  (this interpreter, this package)
            python_child(
                *("zeus_stream", "web", "--listen", "127.0.0.1:0"), *("--parent-pid", str(os.getpid()))
            ),
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            start_new_session=True,
        )
        try:
            say(_wait_for_address(process, words, signals))
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOPS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_address(process: "subprocess.Popen[bytes]", words: IO[bytes], signals: Signals) -> str:
    """Return the sentence that has the address, or why there is none."""
    end_ns = monotonic_ns() + round(STARTS_S * 1e9)
    while True:
        words.seek(0)
        said = words.read().decode(errors="replace")
        for line in said.splitlines():
            if line.startswith(OPEN):
                return f"watch it at {line.removeprefix(OPEN)}"
        if process.poll() is not None or signals.told is not None or monotonic_ns() > end_ns:
            why = said.strip()[-2_000:] or "it did not answer"
            return f"run: could not show the web page: {why} The command runs without it."
        time.sleep(LOOK_S)
