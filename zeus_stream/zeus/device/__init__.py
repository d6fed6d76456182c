"""Devices, with Zeus's names: GPUs are read through the collector, which alone touches them."""

from zeus_stream.zeus.device.cpu import get_cpus
from zeus_stream.zeus.device.gpu import get_gpus
from zeus_stream.zeus.device.soc import get_soc

__all__ = ["get_cpus", "get_gpus", "get_soc"]
