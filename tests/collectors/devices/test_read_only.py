import pytest

from collectors.device import ReadOnlyDevice
from tests.collectors.controls.test_lease import FOUND, Card
from zeus_stream.errors import RefusedError
from zeus_stream.protocol.fields import UNLOCKED


def test_an_observed_device_changes_neither_limit_nor_clock_whoever_asks() -> None:
    card = Card()
    observed = ReadOnlyDevice(card)
    card.set_control("graphics_clock", 1380)
    with pytest.raises(
        RefusedError, match=r"set the power limit to 150 W: it only observes\. Start it without"
    ):
        observed.set_control("power_limit", 150_000)
    with pytest.raises(RefusedError, match="lock the graphics clock at 135 MHz: it only observes"):
        observed.set_control("graphics_clock", 135)
    with pytest.raises(RefusedError, match="unlock the graphics clock: it only observes"):
        observed.set_control("graphics_clock", UNLOCKED)
    assert (card.limit_mw, card.locked_mhz, observed.read_control("power_limit")) == (FOUND, 1380, FOUND)
