"""Fuzzes the decoders and what is behind them: python -m tests.fuzz [--seconds 60] [--seed 0]

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
WORLDS = 1_000
"""Inputs between two recorded worlds that are interpreted with other values in them."""


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
            if count % WORLDS == 0 and (failed := targets.interpret(count + seed)):
                raise AssertionError(failed)  # noqa: TRY301  (shown with its input like any other)
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
    try:
        import atheris  # noqa: F401  (only whether it is there)
    except ImportError:
        mutated(arguments.seconds, arguments.seed)
    else:
        guided(arguments.seconds, arguments.seed)


if __name__ == "__main__":
    main()
