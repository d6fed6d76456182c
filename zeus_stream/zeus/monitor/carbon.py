"""Monitors of carbon emission, with Zeus's names. Here carbon is a signal beside the energy."""

from zeus_stream.zeus.exception import ZeusBaseError
from zeus_stream.zeus.replaced import replaced

_SIGNALS = (
    "Import the intensity with `zeus-stream signals`: `zeus-stream report` and SQL then have the carbon of"
    " every run and window (docs/how-to/costs-and-carbon.md)."
)
CarbonIntensityProvider = replaced("CarbonIntensityProvider", _SIGNALS)
ElectrictyMapsClient = replaced("ElectrictyMapsClient", _SIGNALS)
CarbonEmissionMeasurement = replaced("CarbonEmissionMeasurement", _SIGNALS)
CarbonEmissionMonitor = replaced("CarbonEmissionMonitor", _SIGNALS)


class ZeusCarbonIntensityHTTPError(ZeusBaseError):
    """A failed request for the intensity. Nothing raises it here."""


class ZeusCarbonIntensityNotFoundError(ZeusBaseError):
    """An intensity that is not known. Nothing raises it here."""
