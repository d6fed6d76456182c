"""The job of the simulator, with Zeus's name."""

from zeus_stream.zeus.replaced import replaced

Job = replaced("Job", "`zeus-stream simulate` plays the same traces (docs/how-to/simulate-jobs.md).")
