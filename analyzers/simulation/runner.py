"""Plays many games on all cores; every one of them is the same wherever and whenever it is played."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context

from msgspec import Struct
from msgspec.structs import replace

from analyzers.simulation.baselines import PLAYERS
from analyzers.simulation.recorded_jobs import World
from analyzers.simulation.simulated_jobs import Drift, Played, drifting, play

CHUNK = 10
"""Games that a process is given at a time."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Game(Struct, frozen=True, kw_only=True):
    """One that is to be played."""

    world: World
    player: str
    """One of `PLAYERS`."""
    seed: int
    drift: Drift = "none"
    overlap: float = 0.0
    traces: str = ""
    """A digest of the traces of its world, where they are not those of the package."""

    def play(self) -> list[Played]:
        player = PLAYERS[self.player](self.world)
        rules = replace(player.rules, overlap=self.overlap)
        worlds = drifting(self.world, self.drift)
        return play(worlds, player.policy, self.seed, rules)


def _numbered(game: tuple[int, Game]) -> tuple[int, list[Played]]:
    return game[0], game[1].play()


def play_all(games: Sequence[Game], processes: int | None = None) -> Iterator[tuple[Game, list[Played]]]:
    """Yield what came of games, as they end; ``processes``: at a time; None: as many as cores."""
    workers = min(processes or os.cpu_count() or 1, -(-len(games) // CHUNK))
    if workers <= 1:
        yield from ((game, game.play()) for game in games)
        return
    with _one_thread_each(), get_context("spawn").Pool(workers, _ignore_interrupts) as pool:
        for number, played in pool.imap_unordered(_numbered, enumerate(games), CHUNK):
            yield games[number], played


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that started this one: it ends this one, without a traceback of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let processes that start in this context compute with one thread each: their matrices are small."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
