"""Where a broker is, and how a process reaches it."""

import logging
from pathlib import Path

import pytest

from tests.zeus_stream.conftest import Cli
from zeus_stream.broker.site_settings import SiteSettings, warn_in_clear


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ("nats://b1:4222,nats://127.0.0.1:4222", ["b1:4222"]),
        ("nats://user:secret@10.0.0.2:4222,tls://b2:4222", ["10.0.0.2:4222"]),
        ("nats://localhost,nats://[::1]:4222", []),
        ("b1:4222", ["b1:4222"]),
    ],
)
def test_messages_that_cross_the_network_in_clear_are_said(
    servers: str, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A site sent its log over ``nats://`` between hosts without a word, then warned at each connection."""
    warn_in_clear.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert SiteSettings(broker=servers).connection("collect")["servers"] == servers.split(",")
    assert len(caplog.messages) == len(said)
    for message, server in zip(caplog.messages, said, strict=True):
        assert f"{server} cross the network in clear" in message
        assert "secret" not in message


def test_certificates_of_the_broker_mean_tls() -> None:
    assert SiteSettings(broker="nats://b1:4222", broker_ca=Path("ca.pem")).in_clear() == []


SERVICES = (
    ("collect", "--device", "simulated:a40x1"),
    ("archive", "--database", "dbname=none"),
    ("analyze", "--shards", "2", "--database", "dbname=none"),
    ("analyze", "--follow", "broker"),
    ("status", "--whole-site", "--database", "dbname=none"),
)
"""Commands that speak to a broker."""
FILES = ("BROKER_CREDENTIALS", "BROKER_CA", "BROKER_CERTIFICATE", "BROKER_KEY")


def children() -> set[str]:
    """Return the processes that this one has started."""
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


@pytest.mark.parametrize("command", SERVICES, ids=lambda command: " ".join(command[:2]))
def test_every_process_takes_the_credential_and_the_certificates_of_the_broker(
    command: tuple[str, ...], zeus_dir: Path
) -> None:
    broker, before = {"ZEUS_STREAM_BROKER": "tls://user:geheim@127.0.0.1:1"}, children()
    for name in FILES:
        done = Cli(zeus_dir).refused(*command, **broker, **{f"ZEUS_STREAM_{name}": "/nowhere/file"})
        assert done.returncode == 1
        assert f"could not use {name.lower()} = /nowhere/file: there is no such file." in done.stderr
        assert "geheim" not in done.stdout + done.stderr
    assert children() <= before, "a wrong option fails before any process is started"
