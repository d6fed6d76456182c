"""Tabs that show the live page: readers of its stream, or windows of a real Chromium (`make screens`).

A browser allows six connections to a server, so each profile holds five windows. All windows are visible,
which is the worst case: a hidden tab closes its stream. The browser belongs to a viewer's machine, not to the
one that is measured. Here it shares the cores, and yields to the services (nice 19).
"""

import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from benchmarks.harness import ROOT
from tests.zeus_stream.screens.web.test_browser import FLAGS, MISSING, PROGRAMS

OF_ONE_PROFILE = 5
PATIENCE_S = 300.0
STATE = """
return [document.visibilityState, document.getElementById("state")?.textContent,
        document.querySelectorAll("#now a.tile").length > 0]
"""


class Windows:
    """A Chromium with windows at one address."""

    def __init__(self, driver: webdriver.Chrome, address: str, count: int) -> None:
        self._driver = driver
        self._count = count
        for number in range(count):
            if number:
                driver.switch_to.new_window("window")
            driver.get(address)
        until = time.monotonic() + PATIENCE_S
        while not self.live():
            if time.monotonic() > until:
                raise TimeoutError(f"tabs: {self.states()} after {PATIENCE_S:.0f} s.")
            time.sleep(0.5)

    def states(self) -> list[list[object]]:
        """Return of each window whether it is visible, the state of its stream, and the GPUs it shows."""
        found = []
        for handle in self._driver.window_handles:
            self._driver.switch_to.window(handle)
            found.append(self._driver.execute_script(STATE))
        return found

    def live(self) -> bool:
        """Return whether all windows are visible and show their stream."""
        return self.states() == [["visible", "live", True]] * self._count


@contextmanager
def served(where: Path) -> Iterator[str]:
    """Serve the page of a setup; give its address, with the token."""
    environ = os.environ | {"ZEUS_STREAM_DIR": str(where), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "zeus_stream", "web", "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
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
def tabs(where: Path, count: int, *, chromium: bool) -> Iterator[None]:
    """Serve the page and show it in so many tabs."""
    if not count:
        yield
        return
    with served(where) as address, (real_tabs if chromium else readers)(address, count):
        yield


@contextmanager
def real_tabs(address: str, count: int) -> Iterator[None]:
    """Open the page, with its token, in so many windows. Assert at the end that all are live still."""
    if missing := [name for name in MISSING if name in PROGRAMS]:
        raise SystemExit(f"tabs: could not open: {', '.join(missing)} is missing. Run `make screens`.")
    with ExitStack() as stack:
        opened = [
            Windows(stack.enter_context(chromium()), address, min(OF_ONE_PROFILE, count - begin))
            for begin in range(0, count, OF_ONE_PROFILE)
        ]
        yield
        assert all(each.live() for each in opened), [each.states() for each in opened]


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Start a Chromium with a profile of its own, which yields to other processes."""
    with TemporaryDirectory() as profile:
        options = Options()
        options.binary_location = PROGRAMS["chromium"] or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(PROGRAMS["chromedriver"]))
        try:
            driver.set_page_load_timeout(PATIENCE_S)
            for each in _descendants(driver.service.process.pid):
                os.setpriority(os.PRIO_PROCESS, each, 19)  # the processes of pages inherit it
            yield driver
        finally:
            driver.quit()


def _descendants(pid: int) -> list[int]:
    """Return a process and all that it and its children have started."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, children.read_text(encoding="utf-8").split())
    return found
