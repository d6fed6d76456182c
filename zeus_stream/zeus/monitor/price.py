"""Monitors of energy cost, with Zeus's names. Here a price is a signal beside the energy."""

from zeus_stream.zeus.exception import ZeusBaseError
from zeus_stream.zeus.replaced import replaced

_SIGNALS = (
    "Import the price with `zeus-stream signals`: `zeus-stream report` and SQL then have the cost of every"
    " run and window (docs/how-to/costs-and-carbon.md)."
)
ElectricityPriceProvider = replaced("ElectricityPriceProvider", _SIGNALS)
OpenEIClient = replaced("OpenEIClient", _SIGNALS)
EnergyCostMeasurement = replaced("EnergyCostMeasurement", _SIGNALS)
EnergyCostMonitor = replaced("EnergyCostMonitor", _SIGNALS)


class ZeusElectricityPriceHTTPError(ZeusBaseError):
    """A failed request for the price. Nothing raises it here."""


class ZeusElectricityPriceNotFoundError(ZeusBaseError):
    """A price that is not known. Nothing raises it here."""
