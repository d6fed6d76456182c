"""The time that the report of a site is about: ``--since`` and ``--until``. Pure.

Each is a span before the end of the archive, such as 7d, or a time, such as 2026-05-01T18:00+02:00.
"""

import re
from datetime import UTC, datetime

from msgspec import Struct

from zeus_stream.errors import SettingsError
from zeus_stream.questions.asking import Asking
from zeus_stream.questions.run_questions import find_last

_HOUR_NS = 3_600_000_000_000
_UNIT_NS = {"h": _HOUR_NS, "d": 24 * _HOUR_NS, "w": 7 * 24 * _HOUR_NS}


class Period(Struct, frozen=True):
    """A time from its begin up to, but not including, its end; ns since 1970, UTC."""

    begin_ns: int
    end_ns: int

    @property
    def runs(self) -> str:
        """SQL for the runs that began in it."""
        began = f"min(began_wall_ns) BETWEEN {self.begin_ns} AND {self.end_ns - 1}"
        return f"SELECT run FROM sessions WHERE world_size > 0 GROUP BY run HAVING {began}"  # noqa: S608  (numbers)


def find_period(since: str, until: str | None) -> Asking[Period]:
    """Ask for a period, ``until`` None: to the end of the archive. Raises SettingsError."""
    first, last = _parse("--since", since), None if until is None else _parse("--until", until)
    archive_end_ns = yield from find_last()

    def instant(parsed: tuple[int, bool]) -> int:
        value, ago = parsed
        return max(archive_end_ns - value, 0) if ago else value

    begin_ns = instant(first)
    end_ns = archive_end_ns + 1 if last is None else instant(last)
    if end_ns <= begin_ns and until is not None:
        raise SettingsError(
            f"report: could not use --since {since} --until {until}: it ends before it begins."
            " Give the earlier one as --since."
        )
    return Period(begin_ns, max(end_ns, begin_ns))


def _parse(option: str, text: str) -> tuple[int, bool]:
    """Return nanoseconds, and whether they are a span before the end of the archive."""
    given = text.strip()
    span = re.fullmatch(r"(\d{1,5}(?:\.\d{1,6})?)([hdw])", given)
    if span is not None:
        return round(float(span[1]) * _UNIT_NS[span[2]]), True
    try:
        at = datetime.fromisoformat(given) if re.match(r"\d{4}-\d\d-\d\d", given) else None
    except ValueError:
        at = None
    if at is None:
        raise SettingsError(
            f"{option}: could not understand {text}. Give a span before the end of the archive, such as 36h,"
            " 7d or 2w, or a time, such as 2026-05-01 or 2026-05-01T18:00+02:00."
        )
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000_000, False
