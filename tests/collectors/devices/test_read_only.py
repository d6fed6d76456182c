import pytest

from collectors.devices.read_only import ObservedDevice
from tests.collectors.controls.test_lease import FOUND, Card
from zeus_stream.errors import RefusedError


def test_an_observed_device_changes_neither_limit_nor_clock_whoever_asks() -> None:
    card = Card()
    observed = ObservedDevice(card)
    card.lock_clock(1380)
    with pytest.raises(
        RefusedError, match=r"set the power limit to 150 W: it only observes\. Start it without"
    ):
        observed.set_limit(150_000)
    with pytest.raises(RefusedError, match="lock the clock at 135 MHz: it only observes"):
        observed.lock_clock(135)
    with pytest.raises(RefusedError, match="unlock the clock: it only observes"):
        observed.unlock_clock()
    assert (card.limit_mw, card.locked_mhz, observed.requested_limit_mw()) == (FOUND, 1380, FOUND)
