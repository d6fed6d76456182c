"""What may be changed of a device. Each knob has a machine (`leases`), a lease and a record of its own. Pure.

A knob's value is an int in its unit: mW of the power limit; MHz at which the graphics clock is locked, or
UNLOCKED. NVML tells a limit but not a lock: a lock that somebody else made is neither seen nor given back.
"""

from enum import Enum

from collectors.device import watts

UNLOCKED = 0
"""Value of a graphics clock that nothing of ours locks: what is "found", and what a restore returns to."""


class Knob(Enum):
    """A thing that is set, and put back."""

    LIMIT = "power limit"
    CLOCK = "graphics clock"

    @property
    def unit(self) -> str:
        """Suffix of a value's name."""
        return "mw" if self is Knob.LIMIT else "mhz"

    def says(self, value: int) -> str:
        """Return a value for a sentence: ``250 W``, ``1380 MHz``, ``an unlocked clock``."""
        if self is Knob.LIMIT:
            return watts(value)
        return "an unlocked clock" if value == UNLOCKED else f"{value} MHz"

    def change(self, value: int | None) -> str:
        """Return what setting a value is, for a sentence; None: putting back what was found."""
        if self is Knob.LIMIT:
            return "restore the power limit" if value is None else f"set the power limit to {watts(value)}"
        return "unlock the graphics clock" if value is None else f"lock the graphics clock at {value} MHz"
