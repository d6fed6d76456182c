"""The page of a job: what its policy believes, what it tries next, and its open runs with their phase."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from starlette.types import ASGIApp

from analyzers.archive.duckdb_file import DuckdbFile
from tests.analyzers.batch_size.test_history import ROW
from tests.empty_archive import archive_at
from tests.zeus_stream.cli.test_recurring_jobs import TRIES
from tests.zeus_stream.screens.live_snapshots import SNAPSHOT, a_run
from tests.zeus_stream.screens.web.asking import Answered, ask
from tests.zeus_stream.screens.web.conftest import TOKEN
from tests.zeus_stream.screens.web.test_routes import Elements
from zeus_stream.cli.screens.archive_source import ArchiveSource
from zeus_stream.cli.screens.recurring_jobs import job_belief, look_up
from zeus_stream.errors import SettingsError
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.screens.site.job_belief import Estimate, JobBelief, SetupBelief, belief_panel
from zeus_stream.screens.web.access.security import LOOPBACK, WebSecurity
from zeus_stream.screens.web.app import build
from zeus_stream.screens.web.now_feed import NowFeed
from zeus_stream.screens.web.now_panels import draw_job
from zeus_stream.screens.web.routes.site import Site
from zeus_stream.screens.web.source import AskTable, Source
from zeus_stream.settings import Settings
from zeus_stream.views.search import phase_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArchiveSource]:
    path = tmp_path_factory.mktemp("jobs") / "energy.duckdb"
    archive = DuckdbFile.open(archive_at(path), Settings())
    archive.put([], [ROW, *[row for row in TRIES if row.version]], {}, replaying=False)
    archive.close()
    source = ArchiveSource(path, path.parent / "signals", Settings())
    yield source
    source.close()


async def page(app: ASGIApp, address: str) -> Answered:
    return await ask(app, address, authorization=f"Bearer {TOKEN}")


def app_of(source: ArchiveSource, feed: NowFeed | None = None, **more: object) -> ASGIApp:
    made = Site(source=Source(source.ask), feed=feed, **{"believed": job_belief, **more})  # type: ignore[arg-type]
    return build(made, WebSecurity(TOKEN, frozenset(LOOPBACK)))


@pytest.mark.sweep
async def test_the_page_says_what_the_command_says(source: ArchiveSource) -> None:
    answered = await page(app_of(source), f"/jobs/{ROW.job}")
    assert answered.status == 200
    Elements(answered.text)
    shown = look_up(lambda sql: source.ask(sql, 10_000, 10).table, ROW.job)
    assert shown is not None
    for setup, size, reason in shown.next:
        assert setup in answered.text
        assert reason in answered.text
        assert f'<dd class="value">{size}</dd>' in answered.text
    assert "95 % interval" in answered.text
    assert "policy adaptive" in answered.text


async def test_a_job_that_does_not_recur_has_no_belief(source: ArchiveSource) -> None:
    answered = await page(app_of(source), "/jobs/another")
    assert answered.status == 200
    assert 'id="belief"' not in answered.text


async def test_a_belief_that_fails_is_a_sentence_and_the_rest_of_the_page_is_there(
    source: ArchiveSource,
) -> None:
    def failing(_: AskTable, job: str) -> None:
        raise SettingsError(f"policy = 'x': could not be understood for {job}.")

    answered = await page(app_of(source, believed=failing), f"/jobs/{ROW.job}")
    assert "could not be understood" in answered.text
    assert "Tries" in answered.text


async def test_open_runs_of_the_job_are_live_with_their_phase(source: ArchiveSource) -> None:
    async def now() -> Snapshot:
        return SNAPSHOT

    answered = await page(app_of(source, NowFeed(now)), "/jobs/a%20job")
    assert 'data-src="../api/events?html&amp;job=a%20job"' in answered.text
    own, other = replace(a_run("r-1"), job="own"), replace(a_run("r-2"), job="other")
    drawn = draw_job(replace(SNAPSHOT, runs=(own, other)), "own")
    assert "../runs/r-1" in drawn
    assert "r-2" not in drawn
    assert phase_of(own).text in drawn
    assert "No run of this job is open" in draw_job(SNAPSHOT, "none")


@pytest.mark.parametrize(
    ("next_size", "tries", "words"),
    [
        (32, (0, 0), "no try has ended with a result yet"),
        (64, (2, 0), "tries a size that is new"),
        (16, (2, 1), "tries a size that is new"),
        (32, (2, 1), "uses the best size"),
        (64, (2, 1), "tries another size again"),
    ],
)
def test_the_phase_of_a_job_in_words(next_size: int, tries: tuple[int, int], words: str) -> None:
    estimates = (Estimate(32, 100.0, 90.0, 110.0, tries[0]), Estimate(64, 120.0, 80.0, 180.0, tries[1]))
    belief = SetupBelief(setup="A40 x1", next_size=next_size, reason="<b>", estimates=estimates)
    assert belief.phase == words
    panel = belief_panel(JobBelief(policy="adaptive", target="accuracy", setups=(belief,)))
    assert words in panel.body
    assert "&lt;b&gt;" in panel.body
    assert [row["cost_j"] for row in panel.rows] == [100.0, 120.0]
