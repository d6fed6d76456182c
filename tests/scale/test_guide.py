"""The servers of the guide: its settings of NATS are understood, and certificates let our processes in."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.scale.servers import Nats, nats, nats_binary
from zeus_stream.broker.jetstream import JetstreamClient
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.errors import SettingsError, UnreachableError

PAGE = Path(__file__).parents[2] / "docs/how-to/cluster.md"


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
