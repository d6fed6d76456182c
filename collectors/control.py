"""The controls of a device: their units and sentences. Pure.

Each control has a lease machine (`lease`) and a restore record of its own. A value is an int in the unit of
its control: mW of the power limit; MHz at which a clock is locked, or UNLOCKED; the bits of workload power
profiles. A driver reports the limit and the profiles but no lock (`READ_BACK`): a lock that another program
made is neither seen nor restored.
"""

from typing import get_args

from zeus_stream.protocol.fields import UNLOCKED, Control, spell_profiles

CONTROLS: tuple[Control, ...] = get_args(Control)
READ_BACK: frozenset[Control] = frozenset(("power_limit", "power_profile"))
"""Those whose requested value a driver reports."""
_UNITS: dict[Control, str] = {"power_limit": "mw", "power_profile": "bits"}


def unit(control: Control) -> str:
    """Return the suffix of a value's name."""
    return _UNITS.get(control, "mhz")


def words(control: Control) -> str:
    """Return a control's name for a sentence: ``power limit``."""
    return control.replace("_", " ")


def spell(control: Control, value: int) -> str:
    """Return a value for a sentence: ``250 W``, ``1380 MHz``, ``an unlocked graphics clock``."""
    if control == "power_limit":
        return f"{value / 1000:g} W"
    if control == "power_profile":
        return f"the power profile {spell_profiles(value)}"
    return f"an unlocked {words(control)}" if value == UNLOCKED else f"{value} MHz"


def spell_change(control: Control, value: int | None) -> str:
    """Return the setting of a value for a sentence. None: what was found is restored."""
    if control == "power_limit":
        return (
            "restore the power limit" if value is None else f"set the power limit to {spell(control, value)}"
        )
    if control == "power_profile":
        return f"restore the {words(control)}" if value is None else f"request {spell(control, value)}"
    unlock = value is None or value == UNLOCKED
    return f"unlock the {words(control)}" if unlock else f"lock the {words(control)} at {value} MHz"
