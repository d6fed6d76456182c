"""Systems on a chip, with Zeus's names. None is measured here."""

from zeus_stream.zeus.exception import ZeusBaseError
from zeus_stream.zeus.replaced import replaced

get_soc = replaced(
    "get_soc",
    "GPUs of NVIDIA and AMD and CPUs with RAPL are measured; another device is a plug-in"
    " (docs/how-to/add-a-device.md).",
)


class ZeusSoCInitError(ZeusBaseError):
    """A system on a chip that cannot be read. Nothing raises it here."""
