"""``zeus-stream run`` that is killed leaves no service behind: real processes, SIGKILL."""

import os
import subprocess
import sys
import time
from pathlib import Path

import duckdb

from tests.environment import ZEUS_STREAM, start
from tests.processes.setup import FOUND_MW, Host, simulated
from tests.waiting import until
from zeus_stream.paths import holder, places

ENDS_S = 10.0
TRAINS = """
import select, sys
from zeus_stream import Publisher
with Publisher(job="killed", gpus=[sys.argv[1]]) as publisher:
    print("trains", flush=True)
    for _ in publisher.steps(iter(lambda: select.select([sys.stdin], [], [], 0.03)[0], [sys.stdin])):
        pass
"""
"""It trains until its input ends, and so after its command was killed."""


def start_run(host: Host, zeus_dir: Path) -> "subprocess.Popen[str]":
    """Start ``zeus-stream run`` with a training that ends with its input."""
    command = (*ZEUS_STREAM, "run", "--device", host.device, "--", sys.executable, "-c", TRAINS, host.gpu)
    return start(zeus_dir, *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None)


def test_a_killed_run_takes_its_services_with_it(zeus_dir: Path) -> None:
    where = places({"ZEUS_STREAM_DIR": str(zeus_dir)})
    with simulated(zeus_dir) as host:
        run = start_run(host, zeus_dir)
        assert run.stdin is not None
        assert run.stdout is not None
        with run.stdin, run.stdout:
            assert run.stdout.readline() == "trains\n"
            locks = [where.run / f"{name}.lock" for name in ("collector", "analyzer")]
            until(lambda: None not in map(holder, locks))  # the training begins before the analyzer
            services = [holder(lock) for lock in locks]
            until(lambda: host.read_mw() < FOUND_MW)
            run.kill()
            run.wait()
            killed_s = time.monotonic()
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in services))
        assert time.monotonic() - killed_s < ENDS_S * load()
        assert host.read_mw() == FOUND_MW
    with duckdb.connect(str(where.archive), read_only=True) as archive:
        assert archive.execute("SELECT count(*) FROM runs").fetchall() == [(1,)]
    assert not where.archive.with_name(f"{where.archive.name}.wal").exists()


def load() -> float:
    """Return how many times longer everything may take on this machine now."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
