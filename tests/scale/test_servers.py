"""The servers of these tests, where a checkout is private."""

import os
import shutil
from pathlib import Path

import pytest

from tests.scale import servers
from tests.scale.conftest import missing, need
from tests.scale.servers import postgres


@pytest.mark.skipif(bool(os.getuid()), reason="only root has another user start PostgreSQL")
def test_postgresql_starts_from_a_checkout_that_only_root_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(missing())
    programs = servers.postgres_binaries()
    package, private = programs.parents[1], tmp_path / "checkout"
    for each in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(each, private / each.name, symlinks=True)
    private.chmod(0o700)
    monkeypatch.setattr(servers, "postgres_binaries", lambda: private / programs.relative_to(package.parent))
    with postgres() as server:
        assert "dbname=made" in server.make("made")
