"""Two collectors and an analyzer as processes on three hosts, which are three directories here: all that
they say to each other goes over TCP, with keys.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.directories import short_directory
from tests.environment import ZEUS_STREAM, free_port, rows, run, running
from tests.waiting import until

TRAINING = """
import sys
from zeus_stream import Publisher
from zeus_stream.simulated_gpu.accelerator import attach
with attach("imagenet") as gpu, Publisher(job="far", run=sys.argv[1], gpus=[0]) as publisher:
    for _ in publisher.steps(range(20)):
        gpu.run(0.02)
"""


@dataclass
class Host:
    """A host: its directory, in which its processes write their errors."""

    directory: Path
    port: int = field(default_factory=free_port)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return (self.directory / "errors").read_text(encoding="utf-8")

    @contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """Run a service until the end of the block."""
        with (
            (self.directory / "errors").open("a") as errors,
            running(self.directory, *ZEUS_STREAM, *arguments, stderr=errors),
        ):
            yield

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run(self.directory, *ZEUS_STREAM, *arguments)

    def let_in(self, other: "Host", name: str, roles: str) -> None:
        """Make a key here, and move it to the other host."""
        create = ("keys", "create", name, "--roles", roles, "--host", self.directory.name)
        issued = self.run(*create).stdout.strip()
        there = other.directory / "keys" / "servers" / f"{self.address}.key"
        there.parent.mkdir(parents=True, exist_ok=True)
        Path(issued).replace(there)

    def rows(self, process: str, timeout_s: float = 1) -> dict[tuple[str, str], str]:
        return rows(self.directory, process, timeout_s)

    def train(self, name: str) -> None:
        run(self.directory, "-c", TRAINING, name).check_returncode()


@dataclass
class Site:
    alpha: Host
    beta: Host
    desk: Host

    def frames(self, host: Host) -> int:
        """Return how far the analyzer has received a host's log."""
        last = self.desk.rows("analyzer", 180).get((f"collector {host.address}", "last frame"), "0")
        return int(last.split()[0])

    def trouble(self, host: Host) -> str:
        return self.desk.rows("analyzer").get((f"collector {host.address}", "trouble"), "")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """For two tests, the second of which ends by revoking a key."""
    with short_directory() as directory:
        yield from _site(directory)


def _site(directory: Path) -> Iterator[Site]:
    hosts = [Host(directory / name) for name in ("alpha", "beta", "desk")]
    for host in hosts:
        host.directory.mkdir()
    site = Site(*hosts)
    for host in (site.alpha, site.beta):
        host.let_in(site.desk, "desk", "follow,command")
    with ExitStack() as processes:
        for seed, host in enumerate((site.alpha, site.beta)):  # the seed makes their GPUs different ones
            simulated = ("collect", "--device", f"simulated:v100x1,seed={seed}")
            listen = ("--host", host.directory.name, "--listen", host.address)
            processes.enter_context(host.running(*simulated, *listen))
        followed = f"{site.alpha.address},{site.beta.address}"
        analyze = ("analyze", "--follow", followed, "--listen", site.desk.address)
        processes.enter_context(site.desk.running(*analyze))
        until(lambda: site.frames(site.alpha) and site.frames(site.beta))
        yield site


def test_a_role_that_is_missing_is_named_and_given_back_is_enough_to_go_on(site: Site) -> None:
    listed = site.alpha.directory / "keys" / "allowed" / "desk.toml"
    all_roles = listed.read_text(encoding="utf-8")

    def give(text: str) -> None:
        draft = listed.with_suffix(".new")
        draft.write_text(text, encoding="utf-8")
        draft.rename(listed)

    give(all_roles.replace('"command", ', ""))
    until(lambda: "has no role 'command'" in site.trouble(site.alpha))
    followed = site.frames(site.alpha)
    until(lambda: site.frames(site.alpha) > followed + 10)  # it is followed, though not commanded

    give(all_roles.replace(', "follow"', ""))
    until(lambda: "could not let in 127.0.0.1: key desk has not the role" in site.alpha.output)
    give(all_roles)
    until(lambda: site.trouble(site.alpha) == "none")
    followed = site.frames(site.alpha)
    until(lambda: site.frames(site.alpha) > followed + 10)


def test_one_analyzer_measures_what_runs_on_two_hosts_until_a_key_is_revoked(site: Site) -> None:
    site.alpha.train("on-alpha")
    site.beta.train("on-beta")
    query = (
        "SELECT run, host, count(energy_j) AS steps FROM windows"
        " WHERE kind = 'step' GROUP BY ALL ORDER BY ALL"
    )
    expected = "run,host,steps\non-alpha,alpha,20\non-beta,beta,20\n"
    until(lambda: site.desk.run("sql", query, "--format", "csv").stdout.replace('"', "") == expected)

    # SQL from another host, by a key of the analyzer's host.
    site.desk.let_in(site.alpha, "reader", "query")
    until(lambda: ("other hosts", "key reader") in site.desk.rows("analyzer"))
    asked = site.alpha.run("sql", query, "--format", "csv", "--analyzer", site.desk.address)
    assert asked.stdout.replace('"', "") == expected

    # A key that is revoked is cut off, and both sides say so; the other collector is followed as before.
    assert "desk" in site.alpha.run("keys", "list").stdout
    site.alpha.run("keys", "revoke", "desk").check_returncode()
    until(lambda: "refused the key desk" in site.trouble(site.alpha))
    until(lambda: "could not let in 127.0.0.1" in site.alpha.output)
    until(lambda: "zeus-stream keys create" in site.desk.output)
    goes_on = site.frames(site.beta)
    until(lambda: site.frames(site.beta) > goes_on + 10)  # what came in before the cut is interpreted by now
    stopped = site.frames(site.alpha)
    until(lambda: site.frames(site.beta) > goes_on + 20)
    assert site.frames(site.alpha) == stopped


def test_a_second_collector_that_speaks_for_a_host_is_not_followed_and_told_the_cure(zeus_dir: Path) -> None:
    first, second, desk = (Host(zeus_dir / name) for name in ("first", "second", "desk"))
    for host in (first, second, desk):
        host.directory.mkdir()
    with ExitStack() as processes:
        for host in (first, second):
            collect = ("collect", "--device", "simulated:v100x1", "--host", "alpha")
            processes.enter_context(host.running(*collect))
        followed = f"{first.directory},{second.directory}"
        processes.enter_context(desk.running("analyze", "--follow", followed))
        until(lambda: "speaks for alpha" in desk.output)
    assert "Give one of them another name with --host" in desk.output
