import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from collectors.processes import descends, ended, is_peer, serves, start_ticks, uptime_ticks


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.anyio
async def test_the_end_of_a_process_is_noticed_when_it_comes_and_not_before() -> None:
    with running("sleep", "60") as child:
        with anyio.move_on_after(0.1) as waited:
            await ended(child.pid, start_ticks(child.pid))
        assert waited.cancelled_caught
        child.kill()
        with anyio.fail_after(60):
            await ended(child.pid, start_ticks(child.pid))


@pytest.mark.anyio
async def test_a_process_that_is_gone_or_whose_pid_is_anothers_has_ended() -> None:
    with running("true") as child:
        child.wait()
    with anyio.fail_after(60):
        await ended(child.pid, 1)
        await ended(os.getpid(), 1)
    assert start_ticks(child.pid) is None


def test_a_grandchild_descends_and_a_stranger_does_not() -> None:
    script = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    try:
        assert descends(grandchild, child.pid)
        assert descends(grandchild, os.getpid())
        assert descends(child.pid, child.pid)
        assert not descends(child.pid, grandchild)
    finally:
        os.kill(grandchild, 9)
        child.wait()
        child.stdout.close()


def test_the_mps_server_of_a_user_computes_for_their_programs_alone(tmp_path: Path) -> None:
    for pid, name in ((7, "nvidia-cuda-mps-server"[:15]), (8, "python")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    assert serves(7, os.geteuid(), tmp_path)
    assert not serves(7, os.geteuid() + 1, tmp_path)
    assert not serves(8, os.geteuid(), tmp_path)
    assert not serves(9, os.geteuid(), tmp_path)


def test_a_process_of_another_user_or_younger_than_a_connection_did_not_make_it() -> None:
    with running("sleep", "60") as child:
        now = uptime_ticks()
        assert is_peer(child.pid, os.geteuid(), now + 1)
        assert is_peer(child.pid, 12345, now + 1) is False
        started = start_ticks(child.pid)
        assert started is not None
        assert is_peer(child.pid, os.geteuid(), started - 1) is False
    assert is_peer(child.pid, os.geteuid(), now) is None
