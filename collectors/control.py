"""The controls of a device: their units and sentences. Pure.

Each control has a lease machine (`lease`) and a restore record of its own. A value is an int in the unit of
its control: mW of the power limit; MHz at which a clock is locked, or UNLOCKED. A driver reports the limit
but no lock: a lock that another program made is neither seen nor restored.
"""

from typing import get_args

from zeus_stream.protocol.fields import UNLOCKED, Control

CONTROLS: tuple[Control, ...] = get_args(Control)


def unit(control: Control) -> str:
    """Return the suffix of a value's name."""
    return "mw" if control == "power_limit" else "mhz"


def words(control: Control) -> str:
    """Return a control's name for a sentence: ``power limit``."""
    return control.replace("_", " ")


def spell(control: Control, value: int) -> str:
    """Return a value for a sentence: ``250 W``, ``1380 MHz``, ``an unlocked graphics clock``."""
    if control == "power_limit":
        return f"{value / 1000:g} W"
    return f"an unlocked {words(control)}" if value == UNLOCKED else f"{value} MHz"


def spell_change(control: Control, value: int | None) -> str:
    """Return the setting of a value for a sentence. None: what was found is restored."""
    if control == "power_limit":
        return (
            "restore the power limit" if value is None else f"set the power limit to {spell(control, value)}"
        )
    unlock = value is None or value == UNLOCKED
    return f"unlock the {words(control)}" if unlock else f"lock the {words(control)} at {value} MHz"
