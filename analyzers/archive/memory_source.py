"""Give back the rows that an analyzer needs at its start beyond what it replays."""

from collections.abc import Iterable, Sequence

from analyzers.archive.process.command_file import CommandFile
from analyzers.archive.replay_source import ReplaySource, as_row
from analyzers.archive.store import Begun
from analyzers.results.fleet_rows import EarlierUse
from analyzers.results.rows import (
    AtLimit,
    GpuRow,
    InstructionRow,
    JobRow,
    ProfileRow,
    RecallRow,
    TryRow,
)
from zeus_stream.settings import Settings, read_back


class MemorySource(ReplaySource):
    """The part of an archive that knows earlier runs. For any thread."""

    commands: CommandFile | None = None
    """None: rows that commands wait for are stored at once."""

    def profiles(self) -> list[ProfileRow]:
        """Return what rounds of profiling have left for later runs."""
        with self.cursor() as cursor:
            names = ", ".join(ProfileRow.__struct_fields__)
            rows = cursor.execute(f"SELECT {names} FROM profiles").fetchall()  # noqa: S608  (our own names)
        return [as_row(ProfileRow, row) for row in rows]

    def pipeline_profiles(self) -> list[InstructionRow]:
        """Return the profiles of pipelines, of the newest run of each job, GPU model and number of stages."""
        names = ", ".join(InstructionRow.__struct_fields__)
        with self.cursor() as cursor:
            rows = cursor.execute(f"SELECT {names} FROM known_instructions").fetchall()  # noqa: S608  (our own names)
        return [as_row(InstructionRow, row) for row in rows]

    def gpus(self) -> list[GpuRow]:
        """Return the GPUs, as they were seen last."""
        names = ", ".join(f'"{name}"' for name in GpuRow.__struct_fields__)
        with self.cursor() as cursor:
            rows = cursor.execute(f"SELECT {names} FROM gpus").fetchall()  # noqa: S608  (our own names)
        return [as_row(GpuRow, row) for row in rows]

    def begun(self, sessions: Sequence[str] | None = None) -> list[Begun]:
        """Return which runs began under which settings, the first to begin first.

        ``sessions``: only of these.
        """
        with self.cursor() as cursor:
            rows = cursor.execute(
                """
                SELECT session, run, start, ended_ns IS NOT NULL FROM runs
                WHERE $1 IS NULL OR list_contains($1, session) ORDER BY start, began_wall_ns, session
                """,
                [sessions],
            ).fetchall()
        return [Begun(*row) for row in rows]

    def settings_then(self, starts: Iterable[int]) -> dict[int, Settings]:
        """Return the settings of the analyzer at these starts, as far as they are known.

        Raises:
            SettingsError: some are none of this version.
        """
        with self.cursor() as cursor:
            rows = cursor.execute(
                "SELECT start, name, value FROM settings WHERE list_contains($1, start) ORDER BY start",
                [list(starts)],
            ).fetchall()
        then: dict[int, dict[str, str]] = {}
        for start, name, value in rows:
            then.setdefault(start, {})[name] = value
        return {start: read_back(values, f"{self.path}") for start, values in then.items()}

    def recalled(self, sessions: Sequence[str] | None = None) -> dict[tuple[str, int], RecallRow]:
        """Return what runs remembered as their profiling began, by session of their lead and round.

        ``sessions``: only of these.
        """
        with self.cursor() as cursor:
            rows = cursor.execute(
                """
                SELECT session, run, round, profile_run, profile_round, measured_wall_ns, limits FROM recalls
                WHERE $1 IS NULL OR list_contains($1, session)
                """,
                [sessions],
            ).fetchall()
        return {
            (row[0], row[2]): as_row(RecallRow, (*row, tuple(AtLimit(**limit) for limit in limits)))
            for *row, limits in rows
        }

    def known_jobs(self, most_tries: int) -> tuple[tuple[JobRow, ...], tuple[TryRow, ...]]:
        """Return the latest version of every job that recurs, and its latest tries of all versions.

        Args:
            most_tries: of each job.
        """
        job_columns, try_columns = (", ".join(kind.__struct_fields__) for kind in (JobRow, TryRow))
        with self.cursor() as cursor:
            jobs = cursor.execute(
                f"SELECT {job_columns} FROM jobs"  # noqa: S608  (names of our own columns)
                " QUALIFY row_number() OVER (PARTITION BY job ORDER BY version DESC) = 1"
            ).fetchall()
            tries = cursor.execute(
                f"SELECT {try_columns} FROM tries"  # noqa: S608  (see above)
                " QUALIFY row_number() OVER (PARTITION BY job ORDER BY number DESC) <= $1"
                " ORDER BY job, number",
                [most_tries],
            ).fetchall()
        return tuple(as_row(JobRow, row) for row in jobs), tuple(as_row(TryRow, row) for row in tries)

    def owners(self, most: int) -> tuple[dict[str, int], dict[str, int], dict[str, str]]:
        """Return the users of jobs and of runs and the hosts of sessions, where known; the latest last."""
        users = (
            "SELECT name, arg_min(uid, began_wall_ns), max(began_wall_ns) AS latest FROM ({}) JOIN runs"
            " USING (session) WHERE uid IS NOT NULL GROUP BY name"
        )
        jobs = users.format("SELECT job AS name, session FROM runs UNION SELECT job, session FROM tries")
        runs = users.format("SELECT run AS name, session FROM runs")
        hosts = "SELECT session, host, began_wall_ns AS latest FROM runs"
        with self.cursor() as cursor:
            found = (
                [row[:2] for row in cursor.execute(f"{sql} ORDER BY latest DESC LIMIT {most}").fetchall()]
                for sql in (jobs, runs, hosts)
            )
            of_jobs, of_runs, of_sessions = (dict(reversed(rows)) for rows in found)
        return of_jobs, of_runs, of_sessions

    def earlier_uses(self, sessions: Sequence[str]) -> list[EarlierUse]:
        """Return the uses of GPUs that ended after the first of these sessions of their host began.

        A host's clock begins again at a boot, so the time of day is compared as well.

        Args:
            sessions: those that are interpreted again; their own uses are left out.
        """
        with self.cursor() as cursor:
            rows = cursor.execute(
                """
                WITH again AS (
                    SELECT host, min(began_ns) AS first_ns, min(began_wall_ns) AS first_wall_ns
                    FROM runs WHERE list_contains($1, session) GROUP BY host
                )
                SELECT host, run, gpus, began_ns, ended_ns FROM runs JOIN again USING (host)
                WHERE NOT list_contains($1, session) AND world_size > 0 AND ended_ns > first_ns
                    AND began_wall_ns + (ended_ns - began_ns) + 2 * wall_error_ns > first_wall_ns
                ORDER BY began_ns
                """,
                [list(sessions)],
            ).fetchall()
        return [as_row(EarlierUse, row) for row in rows]
