"""Follow the results of an analyzer, from any process, and hand them to an exporter. Blocking.

    page after page -> exporter.export      the analyzer is gone -> ask again, every `RETRY_S`

The analyzer keeps the newest results. A slower reader learns how many it missed.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from zeus_stream.errors import UnreachableError
from zeus_stream.paths import Places
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.queries import AskResults
from zeus_stream.screens.results.registry import Exporter
from zeus_stream.transport.client import ask_results
from zeus_stream.transport.endpoints import Distant

WAIT_S = 5.0
"""For a result, within one request."""
RETRY_S = 1.0
"""Between two tries to reach an analyzer, or the system that results are sent to."""


class ReceivedResult(Struct, frozen=True):
    """Results of one page, as a reader gets them."""

    rows: Sequence[Struct]
    missed: int | None
    """Results before them that the reader did not get. None: the analyzer has started again."""
    replayed: bool
    """They may have been received before, from the analyzer that ran then."""
    unknown: int = 0
    """Results of kinds that this version does not know."""


def read_results(
    where: Places | Distant, kinds: Sequence[type[Struct]], *, newest: bool = True, wait_s: float = WAIT_S
) -> Iterator[ReceivedResult]:
    """Yield the results of an analyzer, page after page, for ever. A page may be empty, after ``wait_s``.

    ``newest``: begin with what is stored from now on, else with the oldest kept. Raises RefusedError, and
    UnreachableError: call `next` again to go on, nothing is lost by that.
    """
    return _Reader(where, kinds, newest=newest, wait_s=wait_s)


class _Reader:
    """An iterator that survives an error: a generator would end."""

    def __init__(
        self, where: Places | Distant, kinds: Sequence[type[Struct]], *, newest: bool, wait_s: float
    ) -> None:
        self._where = where
        self._kinds = kinds
        self._newest = newest
        self._wait_s = wait_s
        self._feed: str | None = None
        self._after: int | None = None

    def __iter__(self) -> Iterator[ReceivedResult]:
        return self

    def __next__(self) -> ReceivedResult:
        asked = AskResults(self._feed, self._after, self._newest, round(self._wait_s * 1000))
        page, records = ask_results(self._where, asked, self._kinds)
        first_page = self._feed is None
        self._feed, self._after = page.feed, page.next
        rows = [record for record in records if not isinstance(record, Unknown)]
        missed = 0 if first_page else page.missed
        return ReceivedResult(rows, missed, page.replayed, len(records) - len(rows))


def forward(
    pages: Iterator[ReceivedResult],
    exporter: Exporter,
    wait: Callable[[float], bool],
    warn: Callable[[str], None],
) -> None:
    """Hand results to an exporter until ``wait`` returns that it is to end. ``warn`` takes sentences."""
    warned: str | None = None

    def pause(wrong: Exception) -> bool:
        nonlocal warned
        if str(wrong) != warned:
            warned = str(wrong)
            warn(warned)
        return wait(RETRY_S)

    while not wait(0):
        try:
            page = next(pages)
        except UnreachableError as wrong:
            if pause(wrong):
                return
            continue
        if page.missed != 0:
            exporter.report_missed(page.missed)
        while page.rows:
            try:
                exporter.export(page.rows)
            except (OSError, UnreachableError) as wrong:
                if pause(wrong):
                    return
            else:
                warned = None
                break
