"""Clients of Zeus's daemon, with its names. Here the collector is the process with the privilege."""

from zeus_stream.zeus.replaced import replaced

_COLLECTOR = (
    "`zeus-stream collect` as root is the process with the privilege to set limits; scripts need none"
    " (docs/how-to/production.md)."
)
ZeusdConfig = replaced("ZeusdConfig", _COLLECTOR)
ZeusdClient = replaced("ZeusdClient", _COLLECTOR)
