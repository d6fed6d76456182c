"""Passwords through real processes: nothing that others read, or that is stored, has one."""

import http.client
import os
from contextlib import closing
from pathlib import Path
from typing import get_type_hints

import pytest

from analyzers.archive.duckdb_file import DuckdbFile
from tests.empty_archive import archive_at
from tests.environment import PATIENCE_S, ZEUS_STREAM, rows, run, start
from tests.processes.under_fire import TRAINER
from tests.waiting import until
from tests.zeus_stream.conftest import Cli
from zeus_stream.paths import places
from zeus_stream.settings import Settings

pytestmark = pytest.mark.sweep
CANARY = "canary7f3a91"
SECRETS = {
    "ZEUS_STREAM_BROKER": f"nats://site:{CANARY}@127.0.0.1:1,nats://{CANARY}@localhost:1",
    "ZEUS_STREAM_DATABASE": f"postgresql://zeus:{CANARY}@127.0.0.1:1/zeus?password={CANARY}",
}


def test_no_text_setting_is_stored_with_a_password(tmp_path: Path) -> None:
    """Only those known to be secret were masked: a password in another was a row of every archive."""
    hints = get_type_hints(Settings)
    texts = [name for name in Settings.__struct_fields__ if hints[name] in (str, str | None)]
    assert len(texts) > 4
    settings = Settings(**dict.fromkeys(texts, f"x://user:{CANARY}@host password={CANARY}"))  # type: ignore[arg-type]
    DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), settings).close()
    assert [file for file in tmp_path.iterdir() if CANARY.encode() in file.read_bytes()] == []


def command_lines() -> str:
    """Return the command lines of all processes of this host."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((process / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue  # it has ended
    return "\n".join(lines)


def test_no_password_of_a_setting_is_in_anything_that_is_stored_shown_or_logged(zeus_dir: Path) -> None:
    shown: dict[str, str] = {}

    def show(*arguments: str | Path) -> str:
        done = Cli(zeus_dir)(*map(str, arguments), **SECRETS)
        shown[" ".join(map(str, arguments))] = done.stdout + done.stderr
        return done.stdout + done.stderr

    commands = (
        ("collect", "--device", "simulated:v100x1"),
        ("analyze", "--select", "none"),
        ("web", "--listen", "127.0.0.1:0"),
    )
    services = [start(zeus_dir, *ZEUS_STREAM, *each, env=SECRETS) for each in commands]
    try:
        where = places({"ZEUS_STREAM_DIR": str(zeus_dir)})
        until(lambda: where.publish.exists() and where.query.exists())
        page = services[-1].stderr
        assert page is not None
        address = next(line for line in page if "token=" in line).split()[-1]
        begin, _, token = address.partition("/?token=")
        run(zeus_dir, "-c", TRAINER, "run", 5, env=SECRETS).check_returncode()
        shown["processes"] = command_lines()
        assert "collect" in shown["processes"]
        for arguments in (("status",), ("doctor",), ("sql", "FROM settings", "--format", "csv"), ("report",)):
            assert show(*arguments)
        show("lake", "status")
        shown["rows"] = str([rows(zeus_dir, of, PATIENCE_S) for of in ("collector", "analyzer")])
        host, _, port = begin.removeprefix("http://").partition(":")
        for path in (
            "/",
            "/sql?sql=FROM+settings",
            "/api/sql?format=csv&sql=FROM+settings",
            "/metrics",
            "/x",
        ):
            with closing(http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)) as client:
                client.request("GET", path, headers={"Authorization": f"Bearer {token}"})
                shown[path] = client.getresponse().read().decode()
        for form in ("csv", "parquet"):
            show("export", zeus_dir / form, "--format", form)
    finally:
        for each in services:
            each.terminate()
        for number, each in enumerate(services):
            shown[f"log of service {number}"] = each.communicate(timeout=PATIENCE_S)[1]
    assert [name for name, text in shown.items() if CANARY in text] == []
    stored = [Path(folder) / name for folder, _, names in os.walk(zeus_dir) for name in names]
    assert {file.suffix for file in stored} >= {".duckdb", ".sqlite", ".csv", ".parquet"}
    assert [file for file in stored if CANARY.encode() in file.read_bytes()] == []
