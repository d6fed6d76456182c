"""A stream of power readings from other hosts, with Zeus's names."""

from zeus_stream.zeus.replaced import replaced

_LIVE = (
    "One analyzer follows all hosts: `zeus-stream top` and `zeus-stream web` show them live, and"
    " `PowerMonitor` reads their power (docs/how-to/watch-live.md)."
)
PowerStreamingClient = replaced("PowerStreamingClient", _LIVE)
PowerReadings = replaced("PowerReadings", _LIVE)
CpuPowerReading = replaced("CpuPowerReading", _LIVE)
