"""The web page beside a training: started for `zeus-stream run --web`, ended with it."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

from zeus_stream.cli.running.signals import Signals
from zeus_stream.cli.running.waits import say, until
from zeus_stream.service_packages import python_child

STARTS_S = 20.0
STOPS_S = 3.0
OPEN = "web: open "
"""The line of the page that has its address begins so."""


@contextmanager
def web_page(environment: Mapping[str, str], signals: Signals) -> Iterator[None]:
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

    def output() -> str:
        words.seek(0)
        return words.read().decode(errors="replace")

    def address() -> str | None:
        return next(
            (line.removeprefix(OPEN) for line in output().splitlines() if line.startswith(OPEN)), None
        )

    until(lambda: address() is not None or process.poll() is not None, STARTS_S, signals, "the web page")
    if (found := address()) is not None:
        return f"watch it at {found}"
    why = output().strip()[-2_000:] or "it did not answer"
    return f"run: could not show the web page: {why} The command runs without it."
