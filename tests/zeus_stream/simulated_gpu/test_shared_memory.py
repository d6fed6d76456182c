from pathlib import Path
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zeus_stream.simulated_gpu.shared_memory
from zeus_stream.errors import StorageError
from zeus_stream.simulated_gpu.shared_memory import (
    IDENTITY,
    LIMITS,
    LOAD,
    LOADS,
    STATE_BYTES,
    WORK_BYTES,
    Board,
    LimitChange,
    Load,
    Region,
    Ring,
    identity,
)

GPU = "GPU-0"


def board(directory: Path, model: str = "v100") -> Board:
    return Board(directory, GPU, model, 250_000, now_ns=1000)


def ring_of_a_trainer(directory: Path) -> Ring:
    return Ring(Region(directory / "simulated" / f"{GPU}.load", WORK_BYTES), LOAD, LOADS)


def test_a_board_keeps_limits_and_counter_for_whoever_runs_the_gpu_next(tmp_path: Path) -> None:
    first = board(tmp_path)
    first.set_limit(200_000, since_ns=2000)
    first.save_counter(7, 12345)
    first.lock_clock("graphics_clock", 1380, since_ns=3000)
    first.set_limit(150_000, since_ns=4000)
    first.close()
    second = board(tmp_path)
    assert second.limits() == [
        LimitChange(1000, 250_000),
        LimitChange(2000, 200_000),
        LimitChange(3000, 200_000, 1380),
        LimitChange(4000, 150_000, 1380),
    ]
    assert second.counter() == (7, 12345)
    assert (second.locked_mhz("graphics_clock"), second.locked_mhz("memory_clock")) == (1380, 0)
    second.close()


def test_after_a_reboot_a_board_is_that_of_a_fresh_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = board(tmp_path)
    first.set_limit(200_000, since_ns=2000)
    first.save_counter(7, 12345)
    first.lock_clock("graphics_clock", 1380, 1500)
    first.close()
    monkeypatch.setattr(zeus_stream.simulated_gpu.shared_memory, "boot_id", lambda: "another")
    second = board(tmp_path)
    assert second.limits() == [LimitChange(1000, 250_000)]
    assert second.counter() is None
    assert second.locked_mhz("graphics_clock") == 0
    second.close()


def test_a_board_of_an_earlier_version_is_that_of_a_fresh_gpu(tmp_path: Path) -> None:
    """Its records have another length: to read them gave no limit at all, and ended the collector."""
    folder = tmp_path / "simulated"
    folder.mkdir()
    board(tmp_path).close()
    state = Region(folder / f"{GPU}.gpu", STATE_BYTES)
    named = identity(state).rsplit(b" ", 1)[0]
    state.clear()
    state.put(IDENTITY, 0, named)
    Ring(state, Struct("<QQQ"), LIMITS).put(1, 500, 180_000)
    state.close()
    later = board(tmp_path)
    assert later.limits() == [LimitChange(1000, 250_000)]
    later.close()


def test_two_collectors_side_by_side_see_each_others_limits(tmp_path: Path) -> None:
    first, second = board(tmp_path), board(tmp_path)
    second.limits()
    first.set_limit(150_000, since_ns=2000)
    assert second.limits() == [LimitChange(2000, 150_000)]
    second.set_limit(175_000, since_ns=3000)
    assert first.limits()[-1] == LimitChange(3000, 175_000)
    first.close()
    second.close()


def test_a_load_is_told_of_once_and_again_only_when_it_was_renewed(tmp_path: Path) -> None:
    collector = board(tmp_path)
    ring = ring_of_a_trainer(tmp_path)
    ring.put(1, 10, 20, 0)
    ring.put(2, 30, 40, 1)
    assert collector.loads() == [(1, Load(10, 20, "cifar100")), (2, Load(30, 40, "imagenet"))]
    assert collector.loads() == []
    ring.put(2, 30, 50, 1)
    assert collector.loads() == [(2, Load(30, 50, "imagenet"))]
    ring.put(3, 60, 70, 0)
    assert collector.loads() == [(3, Load(60, 70, "cifar100"))]
    collector.close()


def test_a_collector_that_looks_too_seldom_gets_what_is_left_and_can_tell_by_the_numbers(
    tmp_path: Path,
) -> None:
    collector = board(tmp_path)
    ring = ring_of_a_trainer(tmp_path)
    for number in range(1, LOADS + 101):
        ring.put(number, number, number + 1, 0)
    assert [number for number, _ in collector.loads()] == list(range(101, LOADS + 101))
    collector.close()


@given(st.integers(0, LOAD.size + 3), st.integers(1, 255))
def test_a_torn_record_is_not_there_yet(
    tmp_path_factory: pytest.TempPathFactory, byte: int, flip: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "region"
    region = Region(path, WORK_BYTES, create_mode=0o600)
    region.put(LOAD, 0, 1, 10, 20, 0)
    assert region.get(LOAD, 0) == (1, 10, 20, 0)
    with path.open("r+b") as file:
        file.seek(byte)
        (old,) = Struct("B").unpack(file.read(1))
        file.seek(byte)
        file.write(bytes([old ^ flip]))
    assert region.get(LOAD, 0) is None
    region.close()


def test_a_directory_that_cannot_be_used_is_named_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "simulated").write_text("in the way")
    with pytest.raises(StorageError, match=r"could not be used for simulated GPUs: .* Set ZEUS_STREAM_DIR"):
        board(tmp_path)
