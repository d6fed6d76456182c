"""A Prometheus of one test: scrapes one address, and answers expressions."""

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server
from typing import Any

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".prometheus" / "usr" / "bin" / "prometheus"
"""Where `make test-metrics` puts Debian's package."""


def binary() -> str | None:
    """Return the path of a Prometheus, if there is one."""
    if UNPACKED.exists():
        return str(UNPACKED)
    return os.environ.get("PROMETHEUS") or shutil.which("prometheus")


def promtool() -> str | None:
    """Return the path of the tool that plays rules, if there is one beside Prometheus."""
    server = binary()
    tool = None if server is None else Path(server).with_name("promtool")
    return str(tool) if tool is not None and tool.exists() else None


class Prometheus:
    """A server that runs."""

    def __init__(self, port: int) -> None:
        self._port = port

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=30) as answer:
            body: dict[str, Any] = json.load(answer)
        return body

    def ready(self) -> bool:
        try:
            return bool(self._get("/api/v1/status/runtimeinfo")["status"] == "success")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def result(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression now."""
        query = urllib.parse.urlencode({"query": expression})
        found: list[dict[str, Any]] = self._get(f"/api/v1/query?{query}")["data"]["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        groups = self._get("/api/v1/rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def prometheus(program: str, directory: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """Run a server that scrapes ``target`` once a second."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = directory / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{rules}']\n"
        f"scrape_configs: [{{job_name: zeus-stream, static_configs: [{{targets: ['{target}']}}]}}]\n",
        encoding="utf-8",
    )
    command = [
        *(program, f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (
        (directory / "prometheus.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        server = Prometheus(port)
        deadline = time.monotonic() + 120
        while not server.ready():
            assert process.poll() is None, (directory / "prometheus.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        try:
            yield server
        finally:
            process.terminate()
