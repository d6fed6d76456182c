"""Questions of the screen while no analyzer answers."""

from pathlib import Path

import anyio

from zeus_stream.live.source import LiveSource, candidates
from zeus_stream.screens.terminal.archive_questions import LiveArchive


def test_while_the_analyzer_is_away_a_run_is_shown_without_its_archive(tmp_path: Path) -> None:
    async def ask() -> None:
        async with LiveSource(candidates({"ZEUS_STREAM_DIR": str(tmp_path)}, None)) as source:
            archive = LiveArchive(source)
            details = await archive.details("run-1")
            assert "does not answer" in (details.trouble or "")
            assert (await archive.gaps(), await archive.power(), await archive.price()) == ([], [], None)

    anyio.run(ask)
