"""Asks the analyzer for the energy of windows, through the collector of this host."""

from collections.abc import Callable

from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.events import Answer
from zeus_stream.training.answers import Later, Missing, WindowEnergy
from zeus_stream.training.sender import Courier

MAX_ANSWER_S = 86_400.0


class EnergyQuestions:
    """The questions of one publisher."""

    def __init__(
        self, courier: Courier, wait_for_device: Callable[[int], None], silent: Callable[[], str]
    ) -> None:
        """Take the publisher's parts.

        Args:
            courier: carries the questions.
            wait_for_device: waits for the device to end the steps before the window, until an instant.
            silent: returns why nothing is published; empty: it is.
        """
        self._courier = courier
        self._wait_for_device = wait_for_device
        self._silent = silent

    def energy(self, name: str, number: int, timeout_s: float) -> WindowEnergy | Missing:
        """Wait for the energy of a window, at most ``timeout_s``. Return at once if nobody can answer."""
        if silent := self._silent():
            return Missing(reason=f"window {name!r}: its energy is not known: {silent}.", name=name)
        until_ns = _until_ns(timeout_s)
        self._wait_for_device(until_ns)
        answer = self._courier.ask(number, max(0, until_ns - monotonic_ns()) / 1e9)
        return self._window_energy(name, timeout_s, answer)

    def later(self, name: str, number: int, timeout_s: float) -> Later:
        """Ask for the energy of a window, and return where the answer will be within ``timeout_s``."""
        if self._silent():
            return Later(lambda: self.energy(name, number, 0.0))
        until_ns = _until_ns(timeout_s)
        box = self._courier.question(number, until_ns)

        def look() -> WindowEnergy | Missing | None:
            late = monotonic_ns() >= until_ns  # read before the box: what came in time is found
            if not box.empty():
                return self._window_energy(name, timeout_s, box.get_nowait())
            return self._window_energy(name, timeout_s, None) if late else None

        return Later(look)

    def _window_energy(self, name: str, timeout_s: float, answer: Answer | None) -> WindowEnergy | Missing:
        what = f"window {name!r}: its energy is not known"
        if answer is None and self._courier.absent:
            return Missing(reason=f"{what}: {self._courier.silence()}.", name=name)
        if answer is None:
            return Missing(reason=f"{what}: {self._courier.silence()} within {timeout_s:g} s.", name=name)
        if answer.missing is not None or answer.duration_s is None or not answer.gpus:
            return Missing(reason=f"{what}: {answer.missing or 'the run has no GPU.'}", name=name)
        return WindowEnergy(
            name=name,
            duration_s=answer.duration_s,
            energy_j=sum(gpu.energy_j for gpu in answer.gpus),
            energy_low_j=sum(gpu.energy_low_j for gpu in answer.gpus),
            energy_high_j=sum(gpu.energy_high_j for gpu in answer.gpus),
            gpus=answer.gpus,
        )


def _until_ns(timeout_s: float) -> int:
    return monotonic_ns() + round(min(max(0.0, timeout_s), MAX_ANSWER_S) * 1e9)
