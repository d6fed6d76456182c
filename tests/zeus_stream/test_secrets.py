"""Passwords in the addresses of brokers and databases: no other user and no reader of an archive sees one."""

from pathlib import Path

import duckdb
import pytest

from analyzers.archive.duckdb_file import DuckdbFile
from tests.empty_archive import archive_at
from tests.zeus_stream.conftest import Cli
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.errors import SettingsError, UnreachableError, without_passwords
from zeus_stream.settings import load, make, read, read_back, spelled

CANARY = "canary-f8a1"
SECRETS = {
    "broker": f"nats://site:{CANARY}@b1:4222,nats://{CANARY}@b2:4222",
    "database": f"host=db password='{CANARY} {CANARY}' dbname=zeus",
}
ENVIRON = {f"ZEUS_STREAM_{name.upper()}": value for name, value in SECRETS.items()}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (SECRETS["broker"], "nats://***@b1:4222,nats://***@b2:4222"),
        (SECRETS["database"], "host=db password=*** dbname=zeus"),
        (f"postgresql://u:{CANARY}@@{CANARY}@db/zeus?password={CANARY}&x=1", "postgresql://***@db/zeus?password=***&x=1"),
        ("tcp://host:4321 is not reached by a@b", "tcp://host:4321 is not reached by a@b"),
    ],
)  # fmt: skip
def test_a_text_is_shown_without_passwords(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    assert str(UnreachableError(text)) == shown


def test_an_archive_has_the_settings_without_passwords(tmp_path: Path) -> None:
    settings, site = load({}, ENVIRON), make(SiteSettings, read({}, ENVIRON))
    assert (site.broker, site.database) == tuple(SECRETS.values())
    assert CANARY not in repr(site)
    path = tmp_path / "energy.duckdb"
    DuckdbFile.open(archive_at(path), settings).close()
    with duckdb.connect(path, read_only=True) as connection:
        rows = dict(connection.execute("SELECT name, value FROM settings").fetchall())
    assert not any(CANARY in value for value in rows.values())
    for file in tmp_path.iterdir():
        assert CANARY.encode() not in file.read_bytes()
    assert read_back(spelled(settings), "archive") == settings


@pytest.mark.parametrize("name", SECRETS)
def test_a_password_on_the_command_line_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="could not take a password from the command line") as refused:
        load({name: SECRETS[name]}, {})
    assert CANARY not in str(refused.value)
    assert read({"broker": "nats://b1:4222"}, {}) == {"broker": "nats://b1:4222"}


def test_no_command_prints_a_password(zeus: Cli) -> None:
    for command in ("doctor", "status"):
        done = zeus(command, **ENVIRON)
        assert done.stdout + done.stderr, command
        assert CANARY not in done.stdout + done.stderr, command
