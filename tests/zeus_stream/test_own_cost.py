import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from tests.environment import PATIENCE_S
from zeus_stream import own_cost
from zeus_stream.own_cost import OwnEnergy, OwnUseMeter, cpu_seconds, host_cpu_seconds, own_energy
from zeus_stream.protocol.notes import OwnUse

BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"


@pytest.mark.sweep
def test_work_of_this_process_and_of_its_children_counts() -> None:
    before = cpu_seconds()
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    own = cpu_seconds() - before
    assert 0.25 <= own < 5
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = cpu_seconds() - before - own
        child.communicate("\n")
    assert living >= 0.45
    assert cpu_seconds() - before - own >= 0.45, "a child that has ended still counts"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param(
            "cpu  100 20 30 9000 800 7 3 40 10 5\ncpu0 1 2\n", 2.0, id="idle and I/O waits are none"
        ),
        pytest.param("cpu  100 20 30\n", None, id="a kernel that says less"),
        pytest.param("intr 1 2 3 4 5 6 7 8 9\n", None, id="another file"),
    ],
)
def test_the_time_of_the_host_is_what_its_processors_worked(
    tmp_path: Path, text: str, seconds: float | None
) -> None:
    (tmp_path / "stat").write_text(text)
    assert host_cpu_seconds(tmp_path / "stat") == seconds
    assert host_cpu_seconds(tmp_path / "none") is None


def test_a_record_is_of_the_time_since_the_one_before() -> None:
    meter = OwnUseMeter("collector", "h")
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    first = meter.record(None, "no counter")
    second = meter.record(5000, "")
    assert first.cpu_ns >= 150_000_000 > second.cpu_ns
    assert (first.host_energy_mj, first.reason, second.host_energy_mj) == (None, "no counter", 5000)
    assert second.wall_ns - first.wall_ns == pytest.approx(second.took_ns, abs=5_000_000)


USE = OwnUse(
    t_ns=60_000_000_000,
    wall_ns=1_700_000_060_000_000_000,
    took_ns=60_000_000_000,
    service="collector",
    host="h",
    cpu_ns=3_000_000_000,
    host_cpu_ns=30_000_000_000,
    processors=8,
    host_energy_mj=2_400_000,
    reason="",
)


def test_a_service_has_its_share_of_all_processors_and_of_those_at_work() -> None:
    """3 of 480 processor seconds there were, and of 30 that were used."""
    assert own_energy(USE, 2400.0) == OwnEnergy(15.0, 240.0)


@pytest.mark.parametrize(
    ("use", "host_j"),
    [
        pytest.param(USE, None, id="no counter of the CPUs can be read"),
        pytest.param(replace(USE, host_cpu_ns=None), 2400.0, id="the kernel does not say what the host used"),
        pytest.param(replace(USE, host_cpu_ns=0), 2400.0, id="less than a tick was used"),
    ],
)
def test_no_energy_is_invented(use: OwnUse, host_j: float | None) -> None:
    assert own_energy(use, host_j) is None


def test_a_service_never_has_more_than_the_host() -> None:
    """Ticks of 10 ms are counted at other moments for a process than for the host."""
    energy = own_energy(replace(USE, cpu_ns=31_000_000_000), 2400.0)
    assert energy is not None
    assert energy.low_j <= energy.high_j == 2400.0


HEAPS = """
import ctypes, sys, threading
from zeus_stream.own_cost import share_one_heap
if sys.argv[1] == "shared":
    share_one_heap()
libc, together = ctypes.CDLL(None), threading.Barrier(8)

def work():
    together.wait()
    together.wait() if [bytes(600) for _ in range(10_000)] else None

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


def heaps(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", HEAPS, mode], capture_output=True, text=True, check=True)
    return done.stdout.count("<heap nr=")


def test_the_threads_of_a_service_share_one_heap() -> None:
    """What a thread had freed stayed in its heap: an analyzer grew with the sessions that came and went."""
    assert heaps("shared") == 1 < heaps("each its own")


BLOCK = 100_000
"""Bytes; glibc keeps blocks of this size for later, where larger ones go back at once."""
BLOCKS = 2_000


@pytest.mark.anyio
async def test_what_a_flood_took_is_given_back_once_it_is_over() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(own_cost.return_free_memory)
        await anyio.wait_all_tasks_blocked()
        before = own_cost.memory_bytes()
        flood: list[bytearray] = []
        while own_cost.memory_bytes() <= before + BLOCK * BLOCKS and len(flood) < 10 * BLOCKS:
            flood += [bytearray(BLOCK) for _ in range(100)]  # into what earlier tests left free at first
        last = [bytearray(1_000) for _ in range(1_000)]  # above them: the heap cannot just be cut off
        assert own_cost.memory_bytes() > before + BLOCK * BLOCKS
        flood.clear()
        with anyio.fail_after(PATIENCE_S):
            while own_cost.memory_bytes() > before + own_cost.TRIM_BYTES:
                await anyio.sleep(0.01)
        assert last
        tasks.cancel_scope.cancel()
