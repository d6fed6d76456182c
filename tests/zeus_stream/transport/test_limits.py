"""Real memory of this process."""

from pathlib import Path

import anyio
import pytest

from tests.processes.under_fire import PATIENCE_S
from tests.zeus_stream.transport.test_access import free_port
from zeus_stream.transport import limits, sockets

pytestmark = pytest.mark.anyio
BLOCK = 100_000
"""Bytes; glibc keeps blocks of this size for later, where larger ones go back at once."""
BLOCKS = 2_000


async def test_what_a_flood_took_is_given_back_once_it_is_over() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(limits.give_back)
        await anyio.wait_all_tasks_blocked()
        before = limits.memory_bytes()
        flood: list[bytearray] = []
        while limits.memory_bytes() <= before + BLOCK * BLOCKS and len(flood) < 10 * BLOCKS:
            flood += [bytearray(BLOCK) for _ in range(100)]  # into what earlier tests left free at first
        last = [bytearray(1_000) for _ in range(1_000)]  # above them: the heap cannot just be cut off
        assert limits.memory_bytes() > before + BLOCK * BLOCKS
        flood.clear()
        with anyio.fail_after(PATIENCE_S):
            while limits.memory_bytes() > before + limits.TRIM_BYTES:
                await anyio.sleep(0.01)
        assert last
        tasks.cancel_scope.cancel()


async def test_memory_that_a_service_needs_for_itself_cuts_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An analyzer of 10,000 GPUs cut all connections, again and again: no query was answered."""
    monkeypatch.setattr(limits, "MAX_GROWTH_BYTES", -limits.memory_bytes())
    monkeypatch.setattr(limits, "REST_S", 0.01)
    context, looks, said = sockets.context(), list[int](), anyio.Event()

    def own_bytes() -> int:
        looks.append(0 if len(looks) == 3 else 1 << 40)
        return looks[-1]

    async with anyio.create_task_group() as tasks:
        query = sockets.listen(context, tmp_path / "query")
        query.let_in(f"tcp://127.0.0.1:{free_port()}", sockets.new_keys().secret, "query")
        tasks.start_soon(limits.keep, [query], lambda _: said.set(), own_bytes)
        with anyio.fail_after(PATIENCE_S):
            await said.wait()
        assert len(looks) == 4
        tasks.cancel_scope.cancel()
    query.close()
    context.destroy(linger=0)
