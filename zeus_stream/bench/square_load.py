"""A square load on the first GPU that torch sees: python -m zeus_stream.bench.square_load PERIOD_MS SECONDS.

It works for half of each period, and prints when work began and ended (CLOCK_MONOTONIC, ns), a line each.
It ends with code 1 where there is no torch that sees a GPU.
"""

import importlib.util
import sys
import time
from collections.abc import Sequence

from zeus_stream.clock import monotonic_ns

EDGE = 2048
"""Of the square matrices that are multiplied: a fraction of a millisecond each."""


def main(arguments: Sequence[str]) -> int:
    half_ns, seconds = round(float(arguments[0]) * 5e5), float(arguments[1])
    if not importlib.util.find_spec("torch"):
        return 1
    import torch  # noqa: PLC0415  (many have none)

    if not torch.cuda.is_available():
        return 1
    matrix = torch.randn(EDGE, EDGE, device="cuda")
    torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    begin_ns = monotonic_ns()
    for turn in range(round(seconds * 1e9 / (2 * half_ns))):
        on_ns, off_ns = begin_ns + 2 * turn * half_ns, begin_ns + (2 * turn + 1) * half_ns
        time.sleep(max(on_ns - monotonic_ns(), 0) / 1e9)
        began_ns = monotonic_ns()
        while monotonic_ns() < off_ns:
            torch.mm(matrix, matrix)
            torch.cuda.synchronize()
        sys.stdout.write(f"{began_ns} {monotonic_ns()}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
