import json
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors.controls.lease_messages import Limits
from collectors.controls.restore_record import DamagedRecordError, RestoreRecord, RestoreRecordFile
from collectors.controls.value_changes import PutBack, put_back
from tests.collectors.controls.test_lease import Card
from zeus_stream.errors import StorageError
from zeus_stream.protocol.fields import UNLOCKED

GPU = "GPU-5a1c"
RECORD = RestoreRecord(
    gpu=GPU, limits=Limits(300_000, None, 250_000), boot_id="boot", time="2026-01-02T03:04:05+00:00"
)


def checked(path: Path) -> dict[str, object]:
    """Return what a record says, less its checksum, which holds."""
    content: dict[str, object] = json.loads(path.read_text())
    crc32 = content.pop("crc32")
    assert crc32 == zlib.crc32(json.dumps(content).encode())
    return content


def test_a_record_is_read_back_as_written_and_is_json_as_documented(tmp_path: Path) -> None:
    file = RestoreRecordFile(tmp_path / "restore", GPU)
    assert file.read() is None
    file.write(RECORD)
    assert file.read() == RECORD
    assert checked(tmp_path / "restore" / "GPU-5a1c.json") == {
        "gpu": GPU,
        "found_mw": 300_000,
        "confirmed_mw": None,
        "pending_mw": 250_000,
        "boot_id": "boot",
        "time": "2026-01-02T03:04:05+00:00",
    }
    file.clear()
    file.clear()
    assert file.read() is None
    file.close()


def test_a_record_of_a_later_version_is_read_by_an_earlier_one(tmp_path: Path) -> None:
    file = RestoreRecordFile(tmp_path, GPU)
    file.write(RECORD)
    for path in (tmp_path / f"{GPU}.json", tmp_path / f"{GPU}.json.copy"):
        later = checked(path) | {"written_by": "9.0.0", "slope": [1, 2]}
        path.write_text(json.dumps(later | {"crc32": zlib.crc32(json.dumps(later).encode())}))
    assert file.read() == RECORD
    file.close()


def test_a_clocks_record_is_a_file_of_its_own_beside_the_limits(tmp_path: Path) -> None:
    clock = RestoreRecord(
        gpu=GPU,
        limits=Limits(UNLOCKED, 1380, 1365),
        boot_id="boot",
        time="2026-01-02T03:04:05+00:00",
        control="graphics_clock",
    )
    file = RestoreRecordFile(tmp_path, GPU)
    file.write(RECORD)
    file.write(clock)
    assert (file.read(), file.read("graphics_clock")) == (RECORD, clock)
    assert checked(tmp_path / "GPU-5a1c.clock.json") == {
        "gpu": GPU,
        "found_mhz": 0,
        "confirmed_mhz": 1380,
        "pending_mhz": 1365,
        "boot_id": "boot",
        "time": "2026-01-02T03:04:05+00:00",
    }
    file.clear()
    assert (file.read(), file.read("graphics_clock")) == (None, clock)
    file.close()


def test_a_later_value_takes_the_place_of_the_one_before_and_is_forced_to_disk_later(tmp_path: Path) -> None:
    file, path = RestoreRecordFile(tmp_path, GPU), tmp_path / f"{GPU}.json"
    confirmed = replace(RECORD, limits=Limits(300_000, 250_000))
    file.update(RECORD)
    first = path.stat().st_ino
    assert file.forced, "what was found is on disk before the first change"
    file.update(confirmed)
    assert (file.read(), path.stat().st_ino, file.forced) == (confirmed, first, False)
    file.force()
    assert (file.read(), file.forced) == (confirmed, True)
    found = replace(RECORD, limits=Limits(280_000, None, 250_000))
    file.update(found)
    assert (file.read(), file.forced) == (found, True), "another value was found"
    path.unlink()
    file.update(confirmed)
    assert (file.read(), file.forced) == (confirmed, True), "somebody had removed it"
    long = replace(confirmed, settled="x" * 1000)
    file.update(long)
    file.update(confirmed)
    assert file.read() == confirmed
    file.close()


def test_a_record_that_cannot_be_forced_is_named_and_forced_with_the_next_change(tmp_path: Path) -> None:
    file, path = RestoreRecordFile(tmp_path, GPU), tmp_path / f"{GPU}.json"
    file.update(RECORD)
    file.update(RECORD)
    path.unlink()
    with pytest.raises(StorageError, match=r"GPU-5a1c\.json: could not be written"):
        file.force()
    file.update(RECORD)
    assert (file.read(), file.forced) == (RECORD, True)
    file.clear()
    file.force()
    assert file.read() is None
    file.close()


def test_two_writers_take_turns_and_the_later_sees_what_the_earlier_did(tmp_path: Path) -> None:
    first = RestoreRecordFile(tmp_path, GPU)
    first.write(RECORD)
    with pytest.raises(StorageError, match="another process guards"):
        RestoreRecordFile(tmp_path, GPU, patience_s=0.05)

    def restore() -> None:
        first.clear()
        first.close()

    timer = threading.Timer(0.05, restore)
    timer.start()
    second = RestoreRecordFile(tmp_path, GPU, patience_s=10)
    assert second.read() is None
    second.close()
    timer.join()


def test_the_lock_of_a_killed_process_is_free_and_its_record_is_there(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from collectors.controls.lease_messages import Limits
from collectors.controls.restore_record import RestoreRecord, RestoreRecordFile
file = RestoreRecordFile(Path({str(tmp_path)!r}), {GPU!r})
for limits in (Limits(300_000, None, 200_000), Limits(300_000, 200_000), Limits(300_000, None, 250_000)):
    file.update(RestoreRecord(gpu={GPU!r}, limits=limits, boot_id="boot", time="2026-01-02T03:04:05+00:00"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    file = RestoreRecordFile(tmp_path, GPU, patience_s=0)
    assert file.read() == RECORD
    file.close()


def flipped(content: bytes, bit: int) -> bytes:
    """Return a file with one bit that is another."""
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@pytest.mark.sweep
def test_a_record_with_any_flipped_bit_is_not_believed_its_copy_is_and_it_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = RestoreRecordFile(tmp_path, GPU)
    file.write(RECORD)
    content = file.path().read_bytes()
    for bit in range(8 * len(content.rstrip())):
        file.path().write_bytes(flipped(content, bit))
        assert file.read() == RECORD
    assert "GPU-5a1c.json: could not be understood" in caplog.text
    assert (tmp_path / "GPU-5a1c.json.damaged").exists()
    file.close()


@pytest.mark.parametrize("text", ["", "[]", "{}", "\x00" * 512, None])
def test_a_record_whose_copies_are_both_damaged_is_named_and_nothing_is_guessed(
    tmp_path: Path, text: str | None
) -> None:
    file = RestoreRecordFile(tmp_path, GPU)
    file.write(RECORD)
    for copy in tmp_path.glob("*.json*"):
        content = copy.read_text()
        copy.write_text(content.replace("300000", "250000") if text is None else text)
    with pytest.raises(DamagedRecordError, match=r"GPU-5a1c\.json: could not be understood"):
        file.read()
    file.close()


def test_a_clocks_record_may_be_damaged_whole_for_unlocked_was_found(tmp_path: Path) -> None:
    file = RestoreRecordFile(tmp_path, GPU)
    file.path("graphics_clock").write_text("{")
    record = file.read("graphics_clock")
    assert record is not None
    assert (record.limits.found, record.limits.changed) == (UNLOCKED, True)
    file.close()


def test_one_copy_is_enough_and_both_are_removed(tmp_path: Path) -> None:
    file = RestoreRecordFile(tmp_path, GPU)
    file.write(RECORD)
    file.path().unlink()
    assert file.read() == RECORD
    file.update(RECORD)
    assert file.path().read_bytes() == (tmp_path / "GPU-5a1c.json.copy").read_bytes()
    file.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["GPU-5a1c.lock"]
    file.close()


def test_a_record_that_cannot_be_written_says_so_and_leaves_the_old_one(tmp_path: Path) -> None:
    file = RestoreRecordFile(tmp_path, GPU)
    file.write(RECORD)
    (tmp_path / "GPU-5a1c.new").mkdir()
    with pytest.raises(StorageError, match="could not be written"):
        file.write(RestoreRecord(gpu=GPU, limits=Limits(300_000, 250_000), boot_id="boot", time=""))
    assert file.read() == RECORD
    file.close()


def test_a_child_process_does_not_inherit_the_lock(tmp_path: Path) -> None:
    file = RestoreRecordFile(tmp_path, GPU)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        file.close()
        RestoreRecordFile(tmp_path, GPU, patience_s=0).close()
    finally:
        child.kill()
        child.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["GPU-5a1c.lock"]


@pytest.mark.parametrize(
    ("requested_mw", "limits", "left_mw", "other_program"),
    [
        pytest.param(250_000, Limits(300_000, 250_000), 300_000, False, id="ours"),
        pytest.param(249_500, Limits(300_000, None, 250_000), 300_000, False, id="pending, rounded"),
        pytest.param(300_000, Limits(300_000, None, 250_000), 300_000, False, id="never set"),
        pytest.param(240_000, Limits(300_000, None, 250_000), 300_000, False, id="pending, rounded to tens"),
        pytest.param(280_000, Limits(300_000, None, 250_000), 300_000, False, id="pending, clamped"),
        pytest.param(
            220_000, Limits(300_000, None, 250_000), 220_000, True, id="another's, far from pending"
        ),
        pytest.param(200_000, Limits(300_000, 250_000), 200_000, True, id="another program's"),
        pytest.param(250_400, Limits(300_000, 250_000), 250_400, True, id="beside what was read back"),
        pytest.param(299_500, Limits(300_000, 299_500), 300_000, False, id="ours, half a watt below"),
        pytest.param(299_500, Limits(300_000, 250_000), 299_500, False, id="what was found, as rounded"),
    ],
)
def test_only_what_is_ours_is_put_back(
    *, requested_mw: int, limits: Limits, left_mw: int, other_program: bool
) -> None:
    card = Card()
    card.limit_mw = requested_mw
    assert put_back(card, limits) == PutBack(left_mw, other_program=other_program)
    assert card.limit_mw == left_mw


def test_a_clock_is_put_back_by_unlocking_it() -> None:
    card = Card()
    card.set_control("graphics_clock", 1380)
    assert put_back(card, Limits(UNLOCKED, 1380), "graphics_clock") == PutBack(UNLOCKED, other_program=False)
    assert (card.locked_mhz, card.limit_mw) == (UNLOCKED, 300_000)
