"""What a simulated analyzer archives into: a list, which is quick, or the real DuckDB file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analyzers.archive import duckdb_file
from analyzers.archive.memory_rows import read_recalled
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.memory import Memory
from analyzers.results.rows import DecisionRow, Row, WindowRow
from analyzers.service import replay
from tests.empty_archive import archive_at
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Body, Break, Events, Frame, Part
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings

HOST = "host"
_DECISION = ", ".join(DecisionRow.__struct_fields__)


class Archive:
    """Keeps what the analyzer archives: frames in order, exactly once. Outlives the analyzer."""

    def __init__(self) -> None:
        self.logs: dict[str, int] = {}
        self.frames: list[tuple[Frame, Body]] = []
        self.breaks: list[Break] = []

    def put(self, parts: list[Part]) -> list[tuple[Frame, Body]]:
        """Keep what comes next, and return the frames with their bodies."""
        frames: list[tuple[Frame, Body]] = []
        for part in parts:
            if isinstance(part, Break):
                self.breaks.append(part)
                self.logs[part.log_id] = max(self.logs.get(part.log_id, 0), part.first_offset + part.count)
                continue
            assert part.offset == self.logs.get(part.log_id, 0), "a frame is archived out of turn"
            self.logs[part.log_id] = part.offset + 1
            frames.append((part, codec.decode(part.body, Readings, Events, Notes)))
        self.frames += frames
        return frames

    def put_rows(self, rows: list[Row], interpreted: dict[str, int], *, replaying: bool) -> None:
        """Keep what was derived, and how far each log is interpreted."""

    def position(self) -> tuple[str | None, int | None]:
        return next(reversed(self.logs.items()), (None, None))

    def to_replay(self) -> Iterator[list[tuple[Frame, Body]]]:
        """Yield what an analyzer that starts has to hear again."""
        yield list(self.frames)

    def memory(self) -> Memory:
        """Return what an analyzer that starts has to know beyond what it hears again."""
        return Memory()

    def die(self) -> None:
        """Be a file whose process was killed."""

    def compare(self, windows: dict[tuple[object, ...], WindowRow], plan: RunSettings) -> None:
        """Compare what the archive would answer with what came to pass."""


class Stored(Archive):
    """The real one, in a DuckDB file: what is asked of it is asked of the file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = duckdb_file.DuckdbFile.open(archive_at(path), Settings())

    def put(self, parts: list[Part]) -> list[tuple[Frame, Body]]:
        frames = super().put(parts)
        decoded = iter(frames)
        waiting: list[tuple[Frame, Body]] = []
        for part in parts:
            if isinstance(part, Break):
                self._file.put([waiting])
                self._file.put([part])
                waiting = []
            else:
                waiting.append(next(decoded))
        self._file.put([waiting])
        return frames

    def put_rows(self, rows: list[Row], interpreted: dict[str, int], *, replaying: bool) -> None:
        self._file.put([], rows, interpreted, replaying=replaying)

    def position(self) -> tuple[str | None, int | None]:
        return self._file.position(HOST)

    def to_replay(self) -> Iterator[list[tuple[Frame, Body]]]:
        return self._file.replay()

    def memory(self) -> Memory:
        return self._file.memory()

    def die(self) -> None:
        files = [self._path, self._path.with_name(f"{self._path.name}.wal")]
        left = {file: file.read_bytes() for file in files if file.exists()}
        self._file.close()
        for file, content in left.items():
            file.write_bytes(content)
        self._file = duckdb_file.DuckdbFile.open(archive_at(self._path), Settings())

    def compare(self, windows: dict[tuple[object, ...], WindowRow], plan: RunSettings) -> None:
        with self._file.reading() as reader:

            def rows(sql: str) -> list[tuple[Any, ...]]:
                _, batches = reader.batches(sql, 10_000)
                return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

            again = rows(
                """
                SELECT (SELECT count(*) - count(DISTINCT (log_id, "offset")) FROM frames)
                    + (SELECT count(*) - count(DISTINCT (gpu, t_hi_ns)) FROM readings)
                    + (SELECT count(*) - count(DISTINCT (session, sequence)) FROM events)
                    + (SELECT count(*) - count(DISTINCT (session, kind, index, gpu)) FROM windows)
                """
            )
            assert again == [(0,)], "something is stored twice"
            offsets = rows(
                """SELECT log_id, "offset" FROM frames UNION SELECT log_id, "offset" FROM readings"""
            )
            assert set(offsets) == {(frame.log_id, frame.offset) for frame, _ in self.frames}, (
                "other frames are stored than were handed over"
            )
            stored = rows("SELECT session, kind, index, gpu, energy_j, quality FROM windows")
            decisions = [
                DecisionRow(**dict(zip(_DECISION.split(", "), row, strict=True)))
                for row in rows(f"SELECT {_DECISION} FROM decisions")  # noqa: S608  (our own names)
            ]
        with self._file.file.cursor() as cursor:
            recalled = read_recalled(cursor)
        replayed = replay.interpret(self._file.reader.stored_frames(), plan, {}, Memory(recalled=recalled))
        self._file.close()
        derived = {(*key, row.energy_j, row.quality) for key, row in windows.items()}
        assert set(stored) == derived, "other windows are stored than were derived"
        assert replay.differences(decisions, replayed.decisions.values()) == (), "it decides otherwise again"
