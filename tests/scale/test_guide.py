"""The guide of a site, word by word: its servers, its certificates, and every command that it shows."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import anyio
import psycopg
import pytest

from tests.directories import short_directory
from tests.scale.servers import Nats, nats, nats_binary, spawn
from zeus_stream.broker.jetstream import JetstreamClient
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.errors import SettingsError, UnreachableError

PAGE = Path(__file__).parents[2] / "docs/how-to/cluster.md"
SERVICES = ("collect", "archive", "analyze", "serve-sql")
ELSEWHERE = {
    "export AWS_": "needs a bucket: tests/scale/test_object_store.py",
    "zeus-stream lake create --data s3:": "the same",
    "cp packaging/systemd": "needs systemd: tests/packaging has its units",
    "echo 'ZEUS_STREAM_DATABASE": "the same",
    "systemctl": "the same",
    "zeus-stream web": "needs a certificate: tests/zeus_stream/screens/web has its doors",
    "curl": "asks that",
}
"""Beginnings of commands that are not run here."""
READY = re.compile(r"^(collector|archiver|analyzer|serve-sql): ", re.MULTILINE)
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with an authority, and a certificate of 127.0.0.1 that it has signed."""
    where = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=where, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    openssl("req", *new_key, "-keyout", "b1.key", "-out", "b1.csr", "-subj", "/CN=b1")
    (where / "names").write_text("subjectAltName = IP:127.0.0.1")
    openssl("x509", "-req", "-in", "b1.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-out", "b1.pem",
            "-extfile", "names")  # fmt: skip
    return where


@pytest.fixture
def rules(certificates: Path, tmp_path: Path) -> Path:
    """Return the settings of NATS in the guide, with paths of this test."""
    [text] = re.findall(r"```nats\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    text = text.replace("/etc/nats", str(certificates)).replace("/var/lib/nats", str(tmp_path / "store"))
    file = tmp_path / "nats.conf"
    file.write_text(text)
    return file


@pytest.fixture
def guarded(rules: Path) -> Iterator[Nats]:
    """Run one server with the certificates of the guide's settings, and without its cluster."""
    text = rules.read_text()
    rules.write_text(text[text.index("tls {") :])
    with nats(rules) as running:
        yield running


def test_nats_understands_the_settings_of_the_guide(rules: Path) -> None:
    done = subprocess.run([nats_binary(), "-t", "-c", rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_process_with_a_certificate_is_let_in_and_one_without_gets_a_sentence(
    guarded: Nats, certificates: Path
) -> None:
    ca, pem, key = (certificates / name for name in ("ca.pem", "b1.pem", "b1.key"))

    async def connect(site: SiteSettings) -> None:
        await (await JetstreamClient.connect(site)).close()

    known = SiteSettings(broker=guarded.url, broker_ca=ca, broker_certificate=pem, broker_key=key)
    anyio.run(connect, known)
    for other in (SiteSettings(broker=guarded.url), SiteSettings(broker=guarded.url, broker_ca=ca)):
        with pytest.raises(UnreachableError, match=r"could not be reached.*Start it, or correct --broker"):
            anyio.run(connect, other)
    with pytest.raises(SettingsError, match=r"could not use its certificates.*Correct broker_ca"):
        anyio.run(connect, SiteSettings(broker=guarded.url, broker_ca=key))


# ---- the commands, in their order ---------------------------------------------------------------------


def shown() -> list[tuple[str, str]]:
    """Return each command of the guide, and what it is shown to print."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    texts = "".join(blocks).replace("\\\n", "").removeprefix("$ ").split("\n$ ")
    return [(command, output.strip()) for command, _, output in (text.partition("\n") for text in texts)]


class Operator:
    """A person who types what the guide shows. Each service runs on a host of its own."""

    def __init__(self, hosts: Path, names: Mapping[str, str], running: ExitStack) -> None:
        """``names``: what is called otherwise here, by the word of the guide."""
        self._hosts, self._names, self._running = hosts, names, running
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        self._settings = {"ZEUS_STREAM_DEVICE": "simulated:a40x2", "ZEUS_STREAM_CPU": "off"}
        self.here = hosts
        """Where commands are typed: on the host of the service that was started last."""

    def here_called(self, text: str) -> str:
        """Return a text of the guide with the names of this test."""
        for name in sorted(self._names, key=len, reverse=True):
            text = text.replace(name, self._names[name])
        return text

    def type(self, command: str) -> str:
        """Return what a command prints; a service is left running."""
        program, *arguments = shlex.split(self.here_called(command), comments=True)
        if program == "export":
            self._settings |= dict(each.split("=", 1) for each in arguments)
            return ""
        assert program == "zeus-stream", command
        if arguments[0] in SERVICES:
            self._serve(arguments)
            return ""
        environ, until_s = os.environ | self._settings | {"ZEUS_STREAM_DIR": str(self.here)}, _patience()
        while True:
            done = subprocess.run(
                [sys.executable, "-m", "zeus_stream", *arguments], env=environ, capture_output=True,
                text=True, input="a password\n", check=False, timeout=PATIENCE_S,
            )  # fmt: skip
            if "refused the key" not in done.stderr or time.monotonic() > until_s:
                break  # else the server has not read the new key yet
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _serve(self, arguments: list[str]) -> None:
        if (before := self._services.get(arguments[0])) is not None:
            before.terminate()
            before.wait(PATIENCE_S)
        self.here = self._hosts / f"{len(self._services)}-{arguments[0]}"
        self.here.mkdir(exist_ok=True)
        log = self.here / "log.txt"
        command = ("-m", "zeus_stream", *arguments)
        process = spawn(self._running, log, self.here, *command, **self._settings)
        self._services[arguments[0]] = process
        until_s = _patience()
        while READY.search(log.read_text()) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until_s, log.read_text()
            time.sleep(0.1)


def _patience() -> float:
    return time.monotonic() + PATIENCE_S


@pytest.mark.sweep
def test_every_command_of_the_guide_does_what_it_shows(dsn: str) -> None:
    """It takes a minute: twelve commands and five services start."""
    address = f"127.0.0.1:{20_000 + os.getpid() % 4_000 * 3}"  # below the ports that the kernel gives out
    with ExitStack() as running:
        hosts, url = running.enter_context(short_directory()), running.enter_context(nats()).url
        names = dict.fromkeys(("nats://b1,nats://b2,nats://b3", "nats://b1,nats://b2", "nats://b1"), url)
        names |= dict.fromkeys(("host=/run/postgresql dbname=lake", "host=db dbname=zeus"), dsn)
        names |= {"host=db dbname=lake user=grafana": dsn.replace("user=zs", "user=grafana")}
        names |= {"/srv/lake": str(hosts / "lake")} | dict.fromkeys(
            ("0.0.0.0:5600", "sql.example.org:5600"), address
        )
        operator = Operator(hosts, names, running)
        running.callback(forget_role, dsn)
        typed = [each for each in shown() if not each[0].startswith(tuple(ELSEWHERE))]
        assert len(typed) > 12
        for command, output in typed:
            if "--analyzer" in command:
                operator.here = hosts / "desk"
            printed = operator.type(command)
            if "keys create" in command:  # "move the file that it names to the other host"
                there = hosts / "desk" / "keys" / "servers" / f"{address}.key"
                there.parent.mkdir(parents=True)
                Path(printed.strip()).replace(there)
            elif first := operator.here_called(output.removeprefix("Password:\n")).partition("\n")[0]:
                assert printed.startswith(first)
        operator.type("zeus-stream lake keep")
        assert "UPDATE zs.leases SET epoch = epoch + 1000000" in PAGE.read_text(encoding="utf-8")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("UPDATE zs.leases SET epoch = epoch + 1000000")


def forget_role(dsn: str) -> None:
    """Remove the role that the guide makes: it is of the server, not of a database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(b"DROP OWNED BY grafana; DROP ROLE grafana")


def test_what_the_guide_shows_and_is_not_run_here_is_listed() -> None:
    commands = [command for command, _ in shown()]
    for begin in ELSEWHERE:
        assert any(command.startswith(begin) for command in commands), begin
