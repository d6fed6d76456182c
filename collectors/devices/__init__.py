"""Devices: NVML, AMD, RAPL and simulated ones, and their registry."""
