"""An analyzer that was replaced commands nothing, also after a restart of the collector."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors.ingest.analyzers_known import AnalyzersKnown
from tests.messages import RELEASE_CONTROL, SET_CONTROL
from zeus_stream.errors import StorageError
from zeus_stream.protocol.commands import Hello, ReleaseControl, RenewLeases, SetControl
from zeus_stream.protocol.fields import shard_of

OWNER = "site/shard-1"


def hello(epoch: int | None, owner: str = OWNER, shard: int | None = 1, shards: int | None = 4) -> Hello:
    return Hello("analyzer", owner, epoch, shard, shards)


def command(epoch: int, owner: str = OWNER) -> SetControl:
    return replace(SET_CONTROL, owner=owner, fence=epoch << 32 | 7, gpu="GPU-0", lease_ms=10_000)


def release(epoch: int) -> ReleaseControl:
    return replace(RELEASE_CONTROL, owner=OWNER, fence=epoch << 32, gpu="GPU-0")


def test_who_was_replaced_is_refused_with_the_cure(tmp_path: Path) -> None:
    known = AnalyzersKnown[str](tmp_path / "epochs.json")
    assert known.greet(hello(3), "first") is None
    assert known.greet(hello(4), "second") is None
    why = known.greet(hello(3), "first")
    assert why is not None
    assert "another process has taken it over under epoch 4. Stop this one" in why
    assert known.objection(command(3)) is not None
    assert known.objection(release(3)) is not None
    assert known.objection(RenewLeases(OWNER, "i", ("GPU-0",), 1000, 3)) is not None
    assert known.objection(RenewLeases(OWNER, "i", ("GPU-0",), 1000)) is not None
    assert known.objection(command(4)) is None
    assert known.objection(RenewLeases(OWNER, "i", ("GPU-0",), 1000, 4)) is None
    assert known.stale == 5


def test_an_analyzer_without_an_epoch_is_not_held_to_one(tmp_path: Path) -> None:
    known = AnalyzersKnown[str](tmp_path / "epochs.json")
    assert known.greet(hello(None, "alone", None, None), "way") is None
    assert known.objection(command(0, "alone")) is None
    assert known.objection(RenewLeases("alone", "i", ("GPU-0",), 1000)) is None
    assert known.greet(hello(9), "way") is None
    assert known.objection(command(0, "alone")) is None


def test_a_question_goes_to_the_shard_of_its_job_and_else_to_who_decides_on_all(tmp_path: Path) -> None:
    known = AnalyzersKnown[str](tmp_path / "epochs.json")
    assert known.way("job") is None
    of_job = shard_of("job", 4)
    known.greet(hello(1, "a", of_job), "its shard")
    known.greet(hello(1, "b", (of_job + 1) % 4), "another shard")
    assert known.way("job") == "its shard"
    known.greet(hello(None, "c", None, None), "all")
    assert known.way("job") == "all"


def test_epochs_outlive_the_collector(tmp_path: Path) -> None:
    file = tmp_path / "epochs.json"
    known = AnalyzersKnown[str](file)
    known.greet(hello(5), "way")
    later = AnalyzersKnown[str](file)
    assert later.greet(hello(4), "way") is not None
    assert later.greet(hello(5), "way") is None
    file.write_text("[]")
    with pytest.raises(StorageError, match=r"could not be read: .*remove the file once all analyzers"):
        AnalyzersKnown[str](file)
