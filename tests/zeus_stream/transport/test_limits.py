"""Real memory of this process."""

import anyio
import pytest

from tests.processes.under_fire import PATIENCE_S
from zeus_stream.transport import limits

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
