"""The web page over a recorded run, as files for any static server: ``python docs/site/demo_page.py OUT``.

Two trainings run on simulated GPUs. The page of the second is recorded while it runs: ``replay.js`` gives its
live state to the page in the rhythm in which it came. Every other page is what `zeus-stream web` says of the
archive. Nothing is drawn here: the page is the real one.
"""

import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.parse import parse_qs, quote, unquote, urlencode, urljoin, urlsplit
from urllib.request import Request, urlopen

DEVICE = "simulated:a40x2"
EVERY = ("/", "/jobs", "/waste", "/sql")
LINK = re.compile(r'(?<=[ "])(href|src)="([^"]*)"')
PLOT = re.compile(r'data-gpus="([^"]*)" data-from="(\d+)" data-to="(\d+)"')
KINDS = {"text/html": ".html", "image/svg+xml": ".svg", "application/json": ".json", "text/csv": ".csv"}
AGAIN = 5
"""States from one copy of the overview to the next."""
PX = 1_600
"""Points of a recorded chart of power: enough to zoom into."""
TRAINING = """
import sys, zeus_stream
from zeus_stream import simulated

with simulated.attach(sys.argv[1]) as gpu:
    for epoch in zeus_stream.epochs(4):
        for batch in zeus_stream.steps(range(int(sys.argv[2]))):
            gpu.run(0.02)
        with zeus_stream.window("validation"):
            gpu.run(0.2)
"""


class Page:
    """A web page that runs at an address with its token."""

    def __init__(self, address: str) -> None:
        self.root = urljoin(address, "/")
        self._token = parse_qs(urlsplit(address).query)["token"][0]

    def ask(self, path: str) -> Request:
        return Request(urljoin(self.root, path), headers={"Authorization": f"Bearer {self._token}"})

    def fetch(self, path: str) -> tuple[bytes, str]:
        """Return content and type of an address."""
        with urlopen(self.ask(path)) as answer:
            return answer.read(), answer.headers.get_content_type()


@contextmanager
def command(*arguments: str, environment: Mapping[str, str]) -> Iterator[Page]:
    """Run a command that shows the page; to its end if the command is a training."""
    process = subprocess.Popen(
        [sys.executable, "-m", "zeus_stream", *arguments], stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stderr is not None
    addresses = (re.search(r"http://127\S+", line) for line in process.stderr)
    address = next((found[0] for found in addresses if found), None)
    assert address is not None, "the page has not started"
    rest = threading.Thread(target=process.stderr.read, daemon=True)
    rest.start()
    try:
        yield Page(address)
    finally:
        if arguments[0] == "web":
            process.terminate()
        process.wait()


def record(page: Page) -> tuple[str, list[tuple[int, str]]]:
    """Return the overview late in a run, and its live part with the time of each change, ms."""
    began_s, overview, states = time.monotonic(), "", []
    with urlopen(page.ask("/api/events?html")) as stream:
        lines: list[str] = []
        try:
            for raw in stream:
                line = raw.decode().rstrip("\n")
                if line:
                    lines.append(line)
                    continue
                if "event: now" in lines:
                    state = "\n".join(
                        each.removeprefix("data: ") for each in lines if each.startswith("data:")
                    )
                    states.append((round(1000 * (time.monotonic() - began_s)), state))
                    if len(states) % AGAIN == 1:
                        overview = page.fetch("/")[0].decode()
                lines = []
        except (OSError, HTTPException):
            pass  # the training has ended, and its page with it
    return overview, states


def file_of(address: str, kind: str) -> str:
    """Return the name of the file that has the answer to an address."""
    parts = urlsplit(address)
    name = unquote(parts.path).lstrip("/") or "index"
    if parts.query:
        name += "-" + hashlib.sha256(parts.query.encode()).hexdigest()[:8]
    return name if PurePosixPath(name).suffix in {".css", ".js", ".svg"} else name + KINDS.get(kind, "")


class Copy:
    """The files of a site: pages with links to each other's files."""

    def __init__(self, page: Page, out: Path) -> None:
        self._page, self._out = page, out
        self._files: dict[str, str] = {}

    def file(self, address: str) -> str:
        """Write the file of an address and of all that it leads to. Return its name."""
        if address not in self._files:
            try:
                content, kind = self._page.fetch(address)
            except HTTPError as wrong:
                content, kind = wrong.read(), wrong.headers.get_content_type()
            self._files[address] = file_of(address, kind)
            if kind == "text/html":
                content = self.page(content.decode(), address).encode()
            target = self._out / self._files[address]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return self._files[address]

    def linked(self, text: str, address: str) -> str:
        """Return HTML of an address with links to files."""
        up = "../" * (urlsplit(address).path.count("/") - 1)

        def link(found: re.Match[str]) -> str:
            target = html.unescape(found[2])
            if target.startswith("#"):
                return found[0]
            absolute = urljoin(urljoin(self._page.root, address), target).removeprefix(self._page.root[:-1])
            return f'{found[1]}="{html.escape(up + quote(self.file(absolute)))}"'

        return LINK.sub(link, text)

    def page(self, text: str, address: str, states: object = ()) -> str:
        """Return a page whose scripts ask ``replay.js`` in place of a server."""
        powers = {}
        for gpus, begin, end in PLOT.findall(text):
            for asked in {gpus, *gpus.split(" ")}:
                query = urlencode(
                    [*(("gpu", each) for each in asked.split(" ")), ("from", begin), ("to", end), ("px", PX)]
                )
                powers[asked] = json.loads(self._page.fetch(f"/api/power?{query}")[0])
        recorded = json.dumps({"powers": powers, "states": states}).replace("<", r"\u003c")
        up = "../" * (urlsplit(address).path.count("/") - 1)
        scripts = f'<script>const recorded = {recorded};</script><script src="{up}replay.js"></script>'
        return self.linked(text, address).replace("</title>", f"</title>{scripts}", 1)


def build(out: Path, steps: int) -> None:
    """Write the site into a new folder, from trainings with so many steps an epoch."""
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        environment = {**os.environ, "ZEUS_STREAM_DIR": folder, "ZEUS_STREAM_DEVICE": DEVICE}
        script = Path(folder, "train.py")
        script.write_text(TRAINING, encoding="utf-8")
        for workload in ("squad", "imagenet"):
            run = ("run", "--web", "--", sys.executable, str(script), workload, str(steps))
            with command(*run, environment={**environment, "ZEUS_STREAM_JOB": workload}) as page:
                overview, states = record(page)
        archive = ("web", "--archive", f"{folder}/energy.duckdb", "--listen", "127.0.0.1:0")
        with command(*archive, environment=environment) as page:
            copy = Copy(page, out)
            for address in EVERY:
                copy.file(address)
            shown = [(at_ms, copy.linked(state, "/")) for at_ms, state in states]
            (out / "index.html").write_text(copy.page(overview, "/", shown), encoding="utf-8")
    shutil.copy(Path(__file__).with_name("replay.js"), out)


if __name__ == "__main__":
    build(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 400)
