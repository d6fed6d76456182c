"""A GPU and a session belong to the host that named them first."""

from collections.abc import Sequence
from functools import cache

import pytest
from msgspec.structs import replace

from analyzers.fleet.ownership import MAX_NAMES, SILENT_NS, Owners
from analyzers.interpreter.interpreter import Interpreter
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.result import OWN
from analyzers.results.rows import GapRow, GpuRow
from tests.messages import LEASE_ENDED
from tests.simulation.simulated_site import Training
from tests.simulation.world import Output, World, replayed
from zeus_stream.protocol.events import RunEnded, RunPlanned
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
    return replace(LEASE_ENDED, t_ns=1, gpu=gpu, reason="another program set 100 W", value=100_000)


def intrusions() -> list[Body]:
    gpu = found().gpu
    return [
        readings(),
        Notes((found(),)),
        Notes((DeviceGone(1, gpu, "it fell off"),)),
        Notes((ended(gpu),)),
        Notes((SessionEnded(1, session(), "its process has ended"),)),
        Events(session(), 99, 0, 1, (RunEnded(1),)),
        Events(session(), 99, 0, 1, (RunPlanned(1, None, 50),)),
    ]


def heard(frames: Sequence[Heard]) -> list[Output]:
    interpreter = Interpreter(MEASURE_ONLY)
    return replayed(interpreter, frames)


@pytest.mark.parametrize("number", range(7))
def test_what_another_host_says_of_our_gpu_or_session_is_one_gap_and_changes_nothing(number: int) -> None:
    intrusion = intrusions()[number]
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


def after(end_ns: int, seconds: int, host: str, body: Body) -> Heard:
    frame = Frame(
        log_id=f"log-{host}", offset=seconds, host=host, t_ns=end_ns + seconds * S, topic="t", body=b""
    )
    return frame, body


def test_a_gpu_passes_to_another_host_once_its_own_has_been_silent_for_long_enough_by_our_own_clock() -> None:
    end_ns = recorded()[-1][0].t_ns
    since_s = SILENT_NS // S
    claims = [after(end_ns, second, OTHER, Notes((found(),))) for second in (0, 1, 10**6)]
    outputs = heard([*recorded(), *claims, *claims])
    assert not [row for row in outputs if isinstance(row, GpuRow) and row.host == OTHER]
    still = [after(end_ns, second, OWN, Notes(())) for second in (since_s - 1, since_s)]
    outputs = heard([*recorded(), after(end_ns, 0, OWN, Notes(())), *claims, still[0], *claims])
    assert not [row for row in outputs if isinstance(row, GpuRow) and row.host == OTHER]
    outputs = heard([*recorded(), after(end_ns, 0, OWN, Notes(())), *claims, *still, *claims])
    assert [row for row in outputs if isinstance(row, GpuRow) and row.host == OTHER]


def test_a_session_that_is_over_is_begun_again_by_no_other_host() -> None:
    end_ns = recorded()[-1][0].t_ns
    beginning = next(body for _, body in recorded() if isinstance(body, Events))
    long_after = after(end_ns, 1000, recorded()[-1][0].host, readings())
    interpreter = Interpreter(MEASURE_ONLY)
    replayed(interpreter, [*recorded(), long_after])
    assert session() not in interpreter.site.sessions
    (gap,) = replayed(interpreter, [after(end_ns, 1001, OTHER, beginning)])
    assert isinstance(gap, GapRow)
    assert f"session {session()}: what {OTHER} says of it was not interpreted" in gap.reason


@pytest.mark.parametrize("known", [True, False])
def test_of_too_many_names_the_owner_of_most_loses_the_oldest(*, known: bool) -> None:
    names = {f"script {number}": 2 for number in range(MAX_NAMES)}
    owners = Owners({"ours": 1, **names} if known else {"ours": 1})
    for name in names:
        owners.owner(name, 2)
    assert owners.owner("ours", 3) == 1
    assert owners.owner("script 0", 1) == 1
    assert owners.owner("script 9", 1) == 2
