"""Ends every process that a test run leaves behind, however the run ends.

Each process that a test starts inherits an environment variable with the name of the test run. A reaper
waits for the end of pytest, also by SIGKILL, and kills all processes that carry the variable.
"""

import os
import secrets
import signal
import sys

import pytest

MARK = "TEST_RUN"
REAPER = """
import os, select, signal, sys, time
pytest, mark = int(sys.argv[1]), sys.argv[2].encode()
try:
    end = select.poll()
    end.register(os.pidfd_open(pytest), select.POLLIN)
    if os.getppid() == pytest:
        end.poll()
except ProcessLookupError:
    pass
left, end_s = True, time.monotonic() + 10
while left and time.monotonic() < end_s:
    left = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if mark in environ.read().split(b"\\0") and int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
                    left.append(pid)
        except OSError:  # ended, or not ours
            pass
    time.sleep(0.01)
"""


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts a job with `&` lets it ignore SIGINT, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if hasattr(config, "workerinput"):
        return  # a worker of pytest-xdist carries the mark of the process that started it
    name = f"{os.getpid()}-{secrets.token_hex(8)}"
    reaper = [sys.executable, "-I", "-S", "-c", REAPER, str(os.getpid()), f"{MARK}={name}"]
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawn(sys.executable, reaper, os.environ, file_actions=silent, setsid=True)
    os.environ[MARK] = name
