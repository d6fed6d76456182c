"""`TemperatureMonitor`: the temperature of GPUs over time, from the readings of the collector."""

from zeus_stream.zeus.monitor.readings import ReadingsSince, closest


class TemperatureMonitor:
    """The temperature of GPUs over time.

    Args:
        gpu_indices: GPUs by index, as CUDA counts. None: all.
        update_period: accepted and not used: the collector reads the temperature about once a second.
        max_samples_per_gpu: samples to return at most. None: all.

    Raises:
        ValueError: no GPU is named.

    Example:
        >>> TemperatureMonitor(gpu_indices=[0]).get_temperature()
        {0: 61}
    """

    def __init__(
        self,
        gpu_indices: list[int] | None = None,
        update_period: float = 1.0,
        max_samples_per_gpu: int | None = None,
    ) -> None:
        self.update_period = update_period
        self._readings = ReadingsSince(gpu_indices, max_samples_per_gpu)
        self.gpu_indices = list(self._readings.gpus.indices)

    def __repr__(self) -> str:
        return f"<TemperatureMonitor of GPUs {self.gpu_indices}>"

    def stop(self) -> None:
        """Do nothing: the collector goes on for others."""

    def get_temperature_timeline(
        self, gpu_index: int | None = None, start_time: float | None = None, end_time: float | None = None
    ) -> dict[int, list[tuple[float, int]]]:
        """Return (wall time in s, degrees C) of each GPU since this monitor began, where it changed.

        Args:
            gpu_index: of one GPU. None: all.
            start_time: wall time, s since 1970. None: the begin of this monitor.
            end_time: wall time, s since 1970. None: now.
        """
        found: dict[int, list[tuple[float, int]]] = {}
        for index in self.gpu_indices if gpu_index is None else [gpu_index]:
            line = found[index] = []
            for reading in self._readings.of(index, start_time, end_time):
                celsius = reading.temperature_c
                if celsius is not None and (not line or line[-1][1] != celsius):
                    line.append((reading.t, celsius))
        return found

    def get_temperature(self, time: float | None = None) -> dict[int, int] | None:
        """Return the temperature of each GPU, degrees C. None: a GPU has none yet.

        Args:
            time: wall time, s since 1970: the reading closest to it. None: the last one.
        """
        return closest(self.get_temperature_timeline(), time)
