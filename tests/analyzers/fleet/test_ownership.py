"""A GPU and a session belong to the host that named them first."""

from collections.abc import Sequence
from functools import cache

import pytest

from analyzers.fleet.ownership import SILENT_NS
from analyzers.interpreter import Interpreter
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import GapRow, GpuRow
from tests.simulation.simulated_site import Training
from tests.simulation.world import Output, World, replayed
from zeus_stream.protocol.events import RunEnded
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import ControlLeaseEnded, DeviceFound, DeviceGone, Notes, SessionEnded
from zeus_stream.protocol.readings import Readings

S = 1_000_000_000
OTHER = "other"
MEASURE_ONLY = RunSettings(selector=None)
Heard = tuple[Frame, Body]


@cache
def recorded() -> tuple[Heard, ...]:
    world = World("simulated:v100x1", Training("imagenet", 0.037, 100), MEASURE_ONLY)
    world.run()
    return tuple(world.frames)


def found() -> DeviceFound:
    notes = (note for _, body in recorded() if isinstance(body, Notes) for note in body.notes)
    return next(note for note in notes if isinstance(note, DeviceFound))


def session() -> str:
    return next(body.session for _, body in recorded() if isinstance(body, Events))


def readings() -> Readings:
    return next(body for _, body in recorded() if isinstance(body, Readings))


def ended(gpu: str) -> ControlLeaseEnded:
    return ControlLeaseEnded(
        t_ns=1,
        gpu=gpu,
        control="power_limit",
        owner="us",
        cause="stranger",
        reason="another program set 100 W",
        value=100_000,
    )


def intrusions() -> list[Body]:
    gpu = found().gpu
    return [
        readings(),
        Notes((found(),)),
        Notes((DeviceGone(1, gpu, "it fell off"),)),
        Notes((ended(gpu),)),
        Notes((SessionEnded(1, session(), "its process has ended"),)),
        Events(session(), 99, 0, 1, (RunEnded(1),)),
    ]


def heard(frames: Sequence[Heard]) -> list[Output]:
    interpreter = Interpreter(MEASURE_ONLY)
    return replayed(interpreter, frames)


@pytest.mark.parametrize("intrusion", intrusions(), ids=lambda body: repr(body)[:40])
def test_what_another_host_says_of_our_gpu_or_session_is_one_gap_and_changes_nothing(intrusion: Body) -> None:
    frames = list(recorded())
    middle, last = frames[len(frames) // 2][0], frames[-1][0]
    for place in (len(frames) // 2, len(frames) // 2 + 3):
        frames.insert(
            place,
            (
                Frame(log_id="log-other", offset=place, host=OTHER, t_ns=middle.t_ns, topic="t", body=b""),
                intrusion,
            ),
        )
    assert last.host != OTHER
    outputs = heard(frames)
    gaps = [row for row in outputs if isinstance(row, GapRow)]
    assert [row.host for row in gaps] == [OTHER]
    assert f"it belongs to {last.host}" in gaps[0].reason
    assert [row for row in outputs if row not in gaps] == heard(recorded())


def test_a_gpu_passes_to_another_host_once_its_own_has_been_silent() -> None:
    end_ns = recorded()[-1][0].t_ns
    claims: list[Heard] = [
        (
            Frame(
                log_id="log-other", offset=offset, host=OTHER, t_ns=end_ns + offset * S, topic="t", body=b""
            ),
            Notes((found(),)),
        )
        for offset in range(2 * SILENT_NS // S)
    ]
    outputs = heard([*recorded(), *claims])
    first = next(index for index, row in enumerate(outputs) if isinstance(row, GpuRow) and row.host == OTHER)
    assert any(isinstance(row, GapRow) and row.host == OTHER for row in outputs[:first])
    assert len([row for row in outputs if isinstance(row, GpuRow) and row.host == OTHER]) <= SILENT_NS // S
