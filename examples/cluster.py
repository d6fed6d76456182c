"""Many hosts on one machine: a broker, PostgreSQL, three collectors, two archivers, and SQL on the lake.

    make demo-cluster

Nothing is left behind. The collectors have 16 simulated GPUs each. One archiver is killed in the middle.
"""

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack

from tests.directories import short_directory
from tests.scale.servers import nats, postgres

HOSTS = ("north", "east", "south")
GPUS = 16
WAIT_S = 180.0
BY_HOST = """
SELECT host, count(*) AS gpus, sum(energy_j) AS energy_j, sum(power_w) AS power_w
FROM (
    SELECT host, gpu, sum(energy_j) AS energy_j, sum(energy_j) / sum(covered_s) AS power_w
    FROM power GROUP BY ALL
) GROUP BY host ORDER BY host
"""
COUNT = "SELECT count(DISTINCT host) FROM seconds"
ONCE = """
SELECT count(*) AS readings, count(DISTINCT (log_id, "offset", gpu, t_hi_ns)) AS different FROM readings
"""


def zeus_stream(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "zeus_stream", *arguments]


def show(what: str, *arguments: str) -> None:
    """Run a command, and show it with its output."""
    print(f"\n{what}\n$ zeus-stream {arguments[0]} {arguments[1]}", flush=True)
    subprocess.run(zeus_stream(*arguments), check=True)  # noqa: S603  (our own commands)


def stored(dsn: str) -> int:
    """Return the number of hosts in the lake."""
    done = subprocess.run(  # noqa: S603  (our own commands)
        zeus_stream("lake", "sql", "--lake", dsn, "--format", "csv", COUNT),
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return int(done.stdout.split()[-1])


def main() -> None:
    with ExitStack() as running:
        print("Starts PostgreSQL and NATS.", flush=True)
        dsn = running.enter_context(postgres()).make("lake")
        broker = running.enter_context(nats())
        data = running.enter_context(tempfile.TemporaryDirectory())
        feed = ("--broker", broker.url, "--site", "demo")
        show("Makes the lake.", "lake", "create", "--lake", dsn, "--data", data)

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            command = zeus_stream(*arguments)
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: S603  (our own commands)
            running.callback(process.wait)
            running.callback(process.terminate)
            return process

        for host in HOSTS:
            where = running.enter_context(short_directory())
            start("collect", "--dir", str(where), "--host", host, "--device", f"simulated:a40x{GPUS}",
                  "--cpu", "off", *feed)  # fmt: skip
        first, _ = (start("archive", "--lake", dsn, *feed) for _ in range(2))
        print(f"\n{len(HOSTS)} collectors with {GPUS} GPUs each, and 2 archivers, are running.", flush=True)
        deadline_s = time.monotonic() + WAIT_S
        while stored(dsn) < len(HOSTS) and time.monotonic() < deadline_s:
            time.sleep(1)
        show("Who archives what:", "lake", "status", "--lake", dsn, *feed)
        print("\nKills the first archiver. The other takes its parts over within 10 s.", flush=True)
        first.kill()
        time.sleep(20)
        show("Who archives what now:", "lake", "status", "--lake", dsn, *feed)
        show("Energy by host:", "lake", "sql", "--lake", dsn, BY_HOST)
        show("Each reading once:", "lake", "sql", "--lake", dsn, ONCE)


if __name__ == "__main__":
    main()
