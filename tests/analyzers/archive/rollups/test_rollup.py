"""Roll-ups: the energy of a counter, by second and by minute, however its readings arrive."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from analyzers.archive.rollups.rollup import CHAIN_NS, GAP_NS, GRACE_NS, TOGETHER, Placed, Rollups
from analyzers.results.readings import READING
from tests.analyzers.readings import row
from zeus_stream.protocol.frames import Frame
from zeus_stream.protocol.readings import Readings, Seen

S = 1_000_000_000
UTC_NS = 1_767_225_600 * S
"""UTC at 0 of the host's clock: a full minute."""
GPU = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
FIGURES = ("energy_j", "covered_s", "readings", "peak_w")


def placed(offset: int, t_ns: int, *rows: tuple[int, ...], utc_ns: int = UTC_NS, log: str = "log") -> Placed:
    body = Readings((GPU,), np.array(list(rows), READING).tobytes()) if rows else None
    frame = Frame(log_id=log, offset=offset, host="alpha", t_ns=t_ns, topic="readings/alpha", body=b"")
    return Placed(frame, body, utc_ns)


def counted(t_ns: int, energy_mj: int, seen: Seen = Seen.CHANGED, **more: int) -> tuple[int, ...]:
    return row(seen, t_ns, t_ns, energy_mj=energy_mj, **more)


def joined(parts: Iterable[dict[str, pa.Table]], name: str) -> list[dict[str, Any]]:
    """Return the rows of a table that some calls gave, those of one bin added up."""
    tables = [part[name] for part in parts if name in part]
    if not tables:
        return []
    added = pa.concat_tables(tables).group_by(["gpu", "began_at"], use_threads=False)
    done = added.aggregate([(name, "max" if name == "peak_w" else "sum") for name in FIGURES])
    names = [name.removesuffix("_sum").removesuffix("_max") for name in done.column_names]
    return [
        {key: round(value, 9) if isinstance(value, float) else value for key, value in found.items()}
        for found in done.rename_columns(names).sort_by("began_at").to_pylist()
    ]


def stream(seed: int, seconds: int = 150) -> list[Placed]:
    """Return frames of a counter with random power, refreshes, lateness and resets."""
    rng = Random(seed)
    t_ns, energy_mj, frames, waiting = 0, 0, list[Placed](), list[tuple[int, ...]]()
    while t_ns < seconds * S:
        t_ns += rng.randint(20, 400) * 1_000_000
        energy_mj += rng.randint(0, 90_000)
        seen = rng.choices((Seen.CHANGED, Seen.UNCHANGED, Seen.RESET, Seen.FIRST), (90, 5, 1, 1))[0]
        if seen is Seen.RESET:
            energy_mj = 0
        waiting.append(counted(t_ns, energy_mj, seen, power_mw=rng.randint(50_000, 300_000)))
        if rng.random() < 0.4:
            frames.append(placed(len(frames), t_ns, *waiting))
            waiting = []
            t_ns += rng.choice((0, 0, S // 3))
    frames.append(placed(len(frames), t_ns + 70 * S, *waiting))
    return frames


@pytest.mark.parametrize("seed", range(8))
def test_energy_is_that_of_the_counter_however_frames_come_and_whenever_it_restarts(seed: int) -> None:
    batch, restart, frames = Random(seed).randint(1, 40), Random(-seed).randint(0, 200), stream(seed)
    whole = Rollups()
    once = [whole.add(frames)]
    rollups, parts = Rollups(), []
    for at in range(0, len(frames), batch):
        if at <= restart < at + batch:  # what was open is added again, and what that closes is dropped
            rollups = Rollups()
            rollups.add(frames[:at])
        parts.append(rollups.add(frames[at : at + batch]))
    for name in ("seconds", "minutes"):
        assert joined(parts, name) == joined(once, name)
    rows = np.concatenate([np.frombuffer(each.body.rows, READING) for each in frames if each.body])
    used_mj = sum(
        int(after["energy_mj"] - before["energy_mj"])
        for before, after in pairwise(rows)
        if after["seen"] != Seen.RESET
    )
    for name in ("seconds", "minutes"):
        assert sum(each["energy_j"] or 0 for each in joined(once, name)) == pytest.approx(used_mj / 1000)


@pytest.mark.parametrize("seed", range(5))
def test_gpus_of_a_host_have_the_sums_that_each_has_alone_in_whatever_order_its_readings_come(
    seed: int,
) -> None:
    rng, names = Random(seed), (GPU, GPU.replace("a", "b"), GPU.replace("a", "c"))
    streams = [stream(3 * seed + number) for number in range(len(names))]
    together = list[Placed]()
    for offset, frames in enumerate(zip(*streams, strict=False)):
        mixed = list[np.void]()
        for number, each in enumerate(frames):
            rows = np.frombuffer(each.body.rows if each.body else b"", READING).copy()
            rows["gpu"] = number
            mixed.extend(rows)
        rng.shuffle(mixed)
        frame = replace(frames[0].frame, offset=offset, t_ns=max(each.frame.t_ns for each in frames))
        together.append(Placed(frame, Readings(names, np.array(mixed, READING).tobytes()), UTC_NS))
    assert len(together) > TOGETHER
    found = Rollups().add([*together, placed(len(together), 10_000 * S)])
    for number, name in enumerate(names):
        alone = Rollups().add([*streams[number][: len(together)], placed(len(together), 10_000 * S)])
        for table in ("seconds", "minutes"):
            mine = found[table].filter(pc.equal(found[table]["gpu"], name))
            expected = joined([alone], table)
            assert joined([{table: mine}], table) == [{**row, "gpu": name} for row in expected]


def test_a_difference_is_shared_among_its_seconds_and_the_parts_add_up() -> None:
    rollups = Rollups()
    frames = [
        placed(0, S, counted(S // 2, 1_000, Seen.FIRST), counted(S // 2, 1_000)),
        placed(1, 3 * S, counted(5 * S // 2, 1_333)),
        placed(2, 9 * S),
    ]
    seconds = joined([rollups.add(frames)], "seconds")
    assert [(found["energy_j"], found["covered_s"]) for found in seconds] == [
        (pytest.approx(0.083), 0.5), (pytest.approx(0.167), 1.0), (pytest.approx(0.083), 0.5)
    ]  # fmt: skip
    assert sum(found["energy_j"] for found in seconds) == pytest.approx(0.333)


def test_a_second_closes_when_a_frame_of_its_log_is_past_its_end() -> None:
    rollups = Rollups()
    first = rollups.add([placed(0, S, counted(0, 0), counted(S, 100_000), counted(S + 1, 100_000))])
    assert first == {}
    assert rollups.add([placed(1, S + GRACE_NS - 1)]) == {}
    assert rollups.add([placed(0, 60 * S, log="another", utc_ns=0)]).keys() == {"seconds", "minutes"}, (
        "its end"
    )
    rollups = Rollups()
    rollups.add([placed(0, S, counted(0, 0), counted(S, 100_000))])
    [found] = joined([rollups.add([placed(1, S + GRACE_NS)])], "seconds")
    assert (found["energy_j"], found["covered_s"], found["readings"]) == (100.0, 1.0, 1)


def test_a_device_without_counter_is_held_at_its_power() -> None:
    rollups = Rollups()
    rows = [row(Seen.POWER, t_ns, t_ns, power_mw=power_mw) for t_ns, power_mw in ((0, 200_000), (S, 90_000))]
    [first, _] = joined([rollups.add([placed(0, 9 * S, *rows)])], "seconds")
    assert (first["energy_j"], first["covered_s"], first["peak_w"]) == (200.0, 1.0, 200.0)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([counted(0, 5), counted(S, 2, Seen.FIRST)], id="back, and the counter fell"),
        pytest.param([counted(0, 5), counted(GAP_NS + 1, 9, Seen.FIRST)], id="a collector away for long"),
        pytest.param([counted(0, 5), counted(S, 2, Seen.RESET)], id="a counter that was reset"),
        pytest.param([counted(0, 5), counted(S, 2)], id="a counter that fell"),
        pytest.param([counted(0, 5), counted(S, 10**12)], id="more than any GPU can draw"),
        pytest.param([counted(0, 5), counted(CHAIN_NS + 1, 9)], id="nothing was read for a minute"),
        pytest.param([counted(0, -1), counted(S, 9)], id="the counter could not be read"),
    ],
)
def test_where_nothing_is_known_nothing_is_covered(rows: Sequence[tuple[int, ...]]) -> None:
    found = joined([Rollups().add([placed(0, 99 * S, *rows)])], "seconds")
    assert {(each["energy_j"], each["covered_s"]) for each in found} == {(None, 0.0)}


def test_the_energy_of_a_time_without_collector_is_that_of_the_counter_and_is_marked() -> None:
    rows = [counted(n * S, 100_000 * n) for n in range(5)]
    rows += [counted(40 * S, 4_000_000, Seen.FIRST), counted(41 * S, 4_100_000)]
    found = joined([Rollups().add([placed(0, 99 * S, *rows)])], "seconds")
    assert sum(each["energy_j"] or 0 for each in found) == pytest.approx(4_100)
    assert {each["energy_j"] for each in found if not each["readings"]} == {100.0}
    assert sum(not each["readings"] for each in found) == 35


def test_a_clock_that_is_set_ends_all_bins_and_rows_of_one_bin_add_up() -> None:
    rollups = Rollups()
    before = [placed(0, 2 * S, *(counted(n * S // 10, 10_000 * n) for n in range(20)))]
    after = [
        placed(1, 3 * S, *(counted(n * S // 10, 10_000 * n) for n in range(20, 40)), utc_ns=UTC_NS - 2 * S),
        placed(2, 90 * S, utc_ns=UTC_NS - 2 * S),
    ]
    parts = [rollups.add(before), rollups.add(after)]
    assert sum(found["energy_j"] for found in joined(parts, "minutes")) == pytest.approx(380)
    assert len(joined(parts, "minutes")) == 1
    assert sum(found["readings"] for found in joined(parts, "seconds")) == 40


def test_readings_at_impossible_times_take_bounded_memory() -> None:
    rollups, rng = Rollups(), Random(7)
    for offset in range(40):
        rows = [counted(rng.randint(-(2**62), 2**62), 5) for _ in range(100)]
        rollups.add([placed(offset, 0, *rows)])
    assert len(rollups._logs["log"].seconds) <= 400
