"""A training that recurs: which batch size to try, and when to end. What a script holds of it.

    job = zeus_stream.recurring("nightly-asr", batch_sizes=[16, 32, 64], default=32, target=0.9, metric="f1")
    loader = make_loader(batch_size=job.batch_size)
    for epoch in job.epochs():
        for batch in zeus_stream.steps(loader):
            train(batch)
        job.report(evaluate())

The analyzer is asked for the batch size, and after each epoch whether to go on. Who does not get an answer
trains with the default, until the target is reached or the epochs are used up. Progress is sent as
events: `TryWanted`, `TryBegan`, `TryEnded`, and those of epochs and of the metric.
"""

import math
import queue
from collections.abc import Callable, Iterator
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import SettingsError
from zeus_stream.protocol.events import TryBegan, TryEnded, TryWanted
from zeus_stream.training.answers import Box, PublisherHooks
from zeus_stream.training.identity import named

ANSWER_S = 2.0
"""A batch size is waited for so long."""
WORD_S = 0.5
"""Between two epochs, the analyzer's word on the one that ended is waited for so long at most,"""
WORD_SHARE = 0.01
"""and for no more than this share of what the epoch took."""
VERDICT_S = 60.0
"""So long it is asked for a word on an epoch."""
MAX_TRIES = 20
"""Of one training."""
MOST = 2**40

Rule: TypeAlias = Literal["sqrt", "linear"]


def checked(wish: TryWanted) -> TryWanted:
    """Return the wish as it can be sent, its sizes ascending. Raises SettingsError if it makes no sense."""

    def wrong(what: str, cure: str) -> SettingsError:
        return SettingsError(f"recurring {wish.job!r}: could not begin: {what}. {cure}")

    sizes = wish.batch_sizes
    if not 1 <= len(sizes) <= 100 or not all(_whole(size) and 1 <= size <= MOST for size in sizes):
        raise wrong(f"batch_sizes is {list(sizes)}", "Give 1 to 100 whole numbers above 0.")
    sizes = tuple(sorted({int(size) for size in sizes}))
    if wish.default not in sizes:
        raise wrong(f"default is {wish.default}", f"Give one of batch_sizes: {', '.join(map(str, sizes))}.")
    if not _whole(wish.max_epochs) or not 1 <= wish.max_epochs <= 1_000_000:
        raise wrong(f"max_epochs is {wish.max_epochs}", "Give a whole number from 1 to a million.")
    if not _whole(wish.window) or not 0 <= wish.window <= MOST:
        raise wrong(f"window is {wish.window}", "Give a whole number: 0, or how many tries count.")
    for name, value, least, most in (
        ("target", wish.target, -math.inf, math.inf),
        ("eta", wish.eta, 0.0, 1.0),
        ("beta", wish.beta, 1.0, 1e6),
    ):
        if not _finite(value) or not least <= value <= most:
            within = "a finite number" if least == -math.inf else f"a number from {least:g} to {most:g}"
            raise wrong(f"{name} is {value!r}", f"Give {within}.")
    return replace(
        wish,
        job=named(wish.job),
        batch_sizes=sizes,
        default=int(wish.default),
        target=float(wish.target),
        metric=named(wish.metric),
        lower_is_better=bool(wish.lower_is_better),
        max_epochs=int(wish.max_epochs),
        eta=float(wish.eta),
        beta=float(wish.beta),
        window=int(wish.window),
    )


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


class Recurring:
    """One training of a job that recurs, made by `zeus_stream.recurring`. For one thread.

    It has one try at a time: a batch size, and a loop of epochs with it. Where the loop ended short of the
    target and `over` is false, `batch_size` asks for the next try's.

    Attributes:
        converged: the target was reached.
        over: nothing is to be tried any more: converged, its loop left, or missed with the default size too.
        reason: why the last loop of epochs ended, in words.

    Example:
        >>> job = zeus_stream.recurring("nightly", batch_sizes=[16, 32], default=32, target=0.9, metric="f1")
        >>> while not job.over:
        ...     loader = make_loader(batch_size=job.batch_size)
        ...     for epoch in job.epochs():
        ...         train(loader)
        ...         job.report(evaluate())
    """

    def __init__(
        self,
        hooks: PublisherHooks,
        wish: TryWanted,
        timeout_s: float = ANSWER_S,
        agree: Callable[[Any], Any] | None = None,
    ) -> None:
        """For `Publisher.recurring`. ``wish``: as `checked`; each try is sent as it, with its own stamp."""
        self._hooks = hooks
        self._wish = wish
        self._timeout_s = timeout_s
        self._agree = agree
        self._attempt = -1
        self._tries = 0
        self._size: int | None = None
        """Of the try under way, None: there is none."""
        self._advised = False
        self._word: tuple[int, int, Box] | None = None
        """What was asked last: after so many epochs, until then, and where the answer will be."""
        self.converged = False
        self.over = False
        self.reason = ""

    def __repr__(self) -> str:
        size = "not asked for yet" if self._size is None else str(self._size)
        state = self.reason or f"batch size {size}"
        return f"<Recurring {self._wish.job!r}, try {max(self._tries, 1)}: {state}>"

    @property
    def batch_size(self) -> int:
        """Return the batch size to train with. Waits for an answer at most ``timeout_s`` (2 s) once a try."""
        if self._size is None:
            self._size = self._begin()
        return self._size

    def scale_lr(self, lr: float, rule: Rule = "sqrt") -> float:
        """Return a learning rate that was right for the default size, for this one.

        Args:
            lr: for the default batch size.
            rule: ``sqrt`` for adaptive optimizers such as AdamW, ``linear`` for SGD.
        """
        if rule not in ("sqrt", "linear"):
            raise SettingsError(f"scale_lr: could not scale by {rule!r}. Give 'sqrt' or 'linear'.")
        ratio = self.batch_size / self._wish.default
        return lr * (math.sqrt(ratio) if rule == "sqrt" else ratio)

    def report(self, value: float) -> bool:
        """Take in the metric after an epoch; return whether it is as good as the target.

        Every rank gives the same value, and the first one's is stored. A tensor is waited for.

        Args:
            value: of the metric.
        """
        number, wish = float(value), self._wish
        reached = number <= wish.target if wish.lower_is_better else number >= wish.target
        self.converged = self.converged or reached
        if self._hooks.rank == 0:
            self._hooks.metric(wish.metric, number)
        return reached

    def epochs(self) -> Iterator[int]:
        """Yield 0, 1, ... while epochs are to be trained: until the target, ``max_epochs``, or a stop."""
        size, wish = self.batch_size, self._wish
        try:
            for epoch in range(wish.max_epochs):
                began_ns = monotonic_ns()
                with self._hooks.epoch():
                    yield epoch
                if self.converged:
                    return
                if epoch + 1 < wish.max_epochs and (stop := self._stop(epoch + 1, began_ns)):
                    self._end("stopped", stop)
                    return
            self._end("exhausted", f"{wish.max_epochs} epochs did not reach {wish.metric} {wish.target:g}")
        finally:
            if self.converged:
                self._end("converged", f"reached {wish.metric} {wish.target:g} with batch size {size}")
            self._end("lost", "its loop was left")

    def _begin(self) -> int:
        self._attempt, self._tries = next(self._hooks.attempts), self._tries + 1
        self._word, wish = None, self._wish
        self._hooks.put((partial(replace, wish, t_ns=monotonic_ns(), attempt=self._attempt),))
        until_ns = monotonic_ns() + round(self._timeout_s * 1e9)
        advice, why = None, ""
        if (box := self._hooks.question(self._attempt, 0, until_ns)) is not None:
            try:
                advice = box.get(timeout=max(0, until_ns - monotonic_ns()) / 1e9)
            except queue.Empty:
                why = f"{self._hooks.silence()} within {self._timeout_s:g} s"
        self._advised = advice is not None and advice.batch_size in wish.batch_sizes
        size = advice.batch_size if self._advised and advice and advice.batch_size else wish.default
        if box is not None and not self._advised:
            why = (why or (advice.reason if advice else "")).rstrip(".")
            self._hooks.warn(
                "recurring", f"job {wish.job!r}: trains with {size}, its default batch size: {why}."
            )
        if self._agree is not None:
            size = int(self._agree(size))
        self._hooks.put((TryBegan, monotonic_ns(), self._attempt, size))
        return size

    def _stop(self, epochs: int, began_ns: int) -> str:
        """Return why the try is to end after so many epochs; empty: it goes on."""
        agree, now_ns, stop = self._agree, monotonic_ns(), ""
        if agree is None and self._hooks.world_size > 1:
            return ""  # ranks that do not end together would wait for each other
        if self._advised and self._hooks.rank == 0:
            if self._word is None or now_ns >= self._word[1]:
                until_ns = now_ns + round(VERDICT_S * 1e9)
                box = self._hooks.question(self._attempt, epochs, until_ns)
                self._word = None if box is None else (epochs, until_ns, box)
            if self._word is not None:
                about, _, box = self._word
                wait_s = min(WORD_S, WORD_SHARE * (now_ns - began_ns) / 1e9) if about == epochs else 0.0
                stop = self._heard(box, wait_s)
        return stop if agree is None else str(agree(stop))

    def _heard(self, box: Box, wait_s: float) -> str:
        try:
            advice = box.get(timeout=wait_s) if wait_s > 0 else box.get_nowait()
        except queue.Empty:
            return ""
        self._word = None
        return "" if advice.go_on else advice.reason or "the analyzer asked for it"

    def _end(self, how: Literal["converged", "stopped", "exhausted", "lost"], reason: str) -> None:
        """End the try, if it has not ended."""
        if self._size is None:
            return
        self._hooks.put((TryEnded, monotonic_ns(), self._attempt, how, reason[:2000]))
        at_default, self._size, self.reason = self._size == self._wish.default, None, f"{how}: {reason}."
        self.over = (
            self.converged or how == "lost" or self._tries >= MAX_TRIES or (how == "exhausted" and at_default)
        )
