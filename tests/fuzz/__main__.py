"""Fuzzes what is behind the decoders, then the decoders: python -m tests.fuzz [--seconds 60] [--seed 0]

With atheris (`make fuzz` installs it beside everything else) guided by coverage; without, by seeded mutation.
An input that fails is printed, and the exit code is not 0.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from random import Random

SEEDS = 500
WORLDS_SHARE = 0.3
"""Of the time: recorded worlds with other values in them, or with a neighbour; the rest: decoders."""


def guided(seconds: int, seed: int) -> None:
    """Let atheris fuzz; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["zeus_stream", "collectors", "analyzers"]):
        from tests.fuzz import targets
    corpus = Path(tempfile.mkdtemp(prefix="zs-corpus-"))
    for number, data in enumerate(targets.seeds(Random(seed), SEEDS)):
        (corpus / str(number)).write_bytes(data)
    atheris.Setup(
        [sys.argv[0], f"-max_total_time={seconds}", f"-seed={seed + 1}", str(corpus)], targets.decode
    )
    atheris.Fuzz()


def worlds(seconds: float, seed: int) -> None:
    """Play recorded worlds with other values in them, and with a neighbour.

    Raises AssertionError if one cannot be interpreted, or a neighbour changes what is not its own.
    """
    from tests.fuzz import extremes, neighbours

    deadline, count = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        with tempfile.TemporaryDirectory(prefix="zs-extremes-") as directory:
            try:
                failed = extremes.play(seed + count, Path(directory))
                failed += [
                    wrong for kind in neighbours.KINDS for wrong in neighbours.play(seed + count, kind)
                ]
            except Exception:
                print(f"world {seed + count}", file=sys.stderr)
                raise
        assert not failed, f"world {seed + count}: {failed}"
        count += 1
    print(f"{(1 + len(neighbours.KINDS)) * count} worlds in {seconds:.0f} s, none failed")


def mutated(seconds: int, seed: int) -> None:
    from tests.fuzz import targets
    from tests.hostile import spoilt

    rng = Random(seed)
    pool = targets.seeds(rng, SEEDS)
    deadline, count = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        data = rng.choice(pool)
        try:
            data = spoilt(rng, data)
            targets.decode(data)
        except Exception:
            print(f"seed {seed}, input {count}: {data!r}", file=sys.stderr)
            raise
        count += 1
    print(f"{count} inputs in {seconds} s, none failed (without atheris)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    of_worlds = round(WORLDS_SHARE * arguments.seconds)
    worlds(of_worlds, arguments.seed)
    seconds = arguments.seconds - of_worlds
    try:
        import atheris  # noqa: F401  (only whether it is there)
    except ImportError:
        mutated(seconds, arguments.seed)
    else:
        guided(seconds, arguments.seed)


if __name__ == "__main__":
    main()
