"""A site over a real archive whose every figure is known (`tests.analyzers.archives`)."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from starlette.types import ASGIApp

from analyzers.archive.duckdb_file import DuckdbFile
from tests.analyzers import archives
from tests.empty_archive import archive_at
from zeus_stream.cli.screens.archive_source import ArchiveSource
from zeus_stream.screens.web.access.security import LOOPBACK, WebSecurity
from zeus_stream.screens.web.app import build
from zeus_stream.screens.web.routes.site import Site
from zeus_stream.screens.web.source import Source
from zeus_stream.settings import Settings

TOKEN = "a-token-of-some-length-for-tests"  # noqa: S105  (of tests)
HOSTILE = '<script>alert("run")</script>' + "x" * 200


@pytest.fixture(scope="package")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArchiveSource]:
    """The archive, with a run more whose names are hostile and long."""
    path = tmp_path_factory.mktemp("web") / "energy.duckdb"
    archive = DuckdbFile.open(archive_at(path), Settings())
    archives.fill(archive)
    hostile = replace(archives.RUN, session="hostile", run=HOSTILE, job="'; DROP TABLE runs; <b>")
    archive.put([], [hostile], {}, replaying=False)
    archive.close()
    source = ArchiveSource(path, path.parent / "signals", Settings())
    yield source
    source.close()


@pytest.fixture
def app(known: ArchiveSource) -> ASGIApp:
    site = Site(source=Source(known.ask), feed=None)
    return build(site, WebSecurity(TOKEN, frozenset(LOOPBACK)))
