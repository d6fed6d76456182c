"""Services start no threads of NumPy, unless the environment asks for some."""

import os

import pytest
from click.testing import CliRunner

from zeus_stream.cli.service_commands import analyze
from zeus_stream.errors import SettingsError


@pytest.mark.parametrize(("asked", "threads"), [(None, "1"), ("4", "4")], ids=["by default", "where asked"])
def test_the_analyzer_starts_no_threads_of_numpy(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, threads: str
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", asked or "")
    if asked is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    refused = CliRunner().invoke(analyze, ["--follow", "broker"])
    assert isinstance(refused.exception, SettingsError)
    assert os.environ["OPENBLAS_NUM_THREADS"] == threads
