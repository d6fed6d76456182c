"""A square load on the first GPU that torch sees: python -m zeus_stream.bench.square_load PERIOD_MS SECONDS.

It works for about half of each period, and prints each begin and end of work (CLOCK_MONOTONIC, ns), a line
each. It ends with code 1 where there is no torch that sees a GPU.
"""

import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence

from zeus_stream.clock import monotonic_ns

EDGE = 2048
"""Of the square matrices that are multiplied: a fraction of a millisecond each."""
_GOLDEN = 0x9E3779B97F4A7C15
"""The golden ratio's fraction in units of 2^-64."""


def square_marks(period_ms: float, seconds: float) -> Iterator[tuple[int, int]]:
    """Yield when work begins and ends, ns from the start.

    Work and pauses last 0.5 to 1.5 times half of the period, spread evenly: an even load shows a sensor the
    same few phases for ever, and of a period that divides the refresh only one.
    """
    t_ns = turn = 0
    while t_ns < seconds * 1e9:
        edges_ns = []
        for _ in ("work", "pause"):
            turn += 1
            edges_ns.append(t_ns)
            t_ns += round(period_ms * 5e5 * (0.5 + (turn**2 * _GOLDEN) % 2**64 / 2**64))
        yield edges_ns[0], edges_ns[1]


def main(arguments: Sequence[str]) -> int:
    if not importlib.util.find_spec("torch"):
        return 1
    import torch  # noqa: PLC0415  (many have none)

    if not torch.cuda.is_available():
        return 1
    matrix = torch.randn(EDGE, EDGE, device="cuda")
    torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    since_ns = monotonic_ns()
    for on_ns, off_ns in square_marks(float(arguments[0]), float(arguments[1])):
        time.sleep(max(since_ns + on_ns - monotonic_ns(), 0) / 1e9)
        _print_now()
        while monotonic_ns() < since_ns + off_ns:
            torch.mm(matrix, matrix)
            torch.cuda.synchronize()
        _print_now()
    return 0


def _print_now() -> None:
    sys.stdout.write(f"{monotonic_ns()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
