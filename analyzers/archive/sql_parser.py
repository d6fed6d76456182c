"""Parse and check SQL from outside in a process of its own, before the analyzer runs it.

DuckDB parses without a limit of time or memory, and with Python's lock held: 2,000 open brackets stop
every thread for seconds, and ``WITH a AS (`` ten times over takes all the memory there is. So a text
is first given to a process that may use little of both. What it parses, the analyzer can; what ends
it is refused, and the next text gets another process.
"""

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from threading import Lock

import duckdb

from analyzers.archive.allowed_sql import checked
from zeus_stream.errors import RefusedError

CPU_S = 1.0
"""To parse and check one text; a long one takes a third of that."""
MEMORY_BYTES = 256 << 20
SAID = 1_000
"""Characters of DuckDB's word on a text that are passed on."""


class Parser:
    """Asks that process, one text at a time; starts it at the first. For any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        self._closed = False
        self.lost = 0
        """Processes that a text has ended."""

    def checked(self, sql: str) -> str:
        """Return the text to run in place of ``sql`` (see `allowed_sql.checked`).

        Raises:
            RefusedError: it is not SQL that only reads, or its parsing takes too much, or this is closed.
        """
        with self._lock:
            if self._closed:
                raise RefusedError("query: could not be answered: the analyzer is stopping. Ask again later.")
            process = self._process = self._process or _start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(sql) + "\n")
                process.stdin.flush()
                reply = process.stdout.readline()
            except BrokenPipeError:
                reply = ""
            if not reply:
                self._end(process)
                self.lost += 1
                raise RefusedError(
                    f"query: could not be parsed within {CPU_S} s and {MEMORY_BYTES >> 20} MiB."
                    " Nest it less deeply."
                )
        allowed, error = json.loads(reply)
        if error is not None:
            raise RefusedError(error)
        return str(allowed)

    def close(self) -> None:
        """End the process; there is no other."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._end(self._process)

    def _end(self, process: "subprocess.Popen[str]") -> None:
        self._process = None
        process.kill()
        process.communicate()


def _start() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "analyzers.archive.sql_parser"]
    return subprocess.Popen(  # noqa: S603  (our own module)
        command,
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # an interrupt from the keyboard is the analyzer's affair
    )


def main() -> None:
    """Answer each line, a text, by a line ``[text to run, error]``. Ends with its input, or at a limit."""
    connection = duckdb.connect(":memory:", config={"threads": 1})
    in_use = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        allowed, error = None, None
        sql = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # SIGPROF ends a process, whatever holds which lock
        try:
            allowed = checked(connection, sql)
        except duckdb.OutOfMemoryException:
            return
        except RefusedError as wrong:
            error = str(wrong)[:SAID]
        except duckdb.Error as wrong:
            error = f"query: could not be answered: {str(wrong).strip()[:SAID]}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps([allowed, error]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
