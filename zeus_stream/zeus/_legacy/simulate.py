"""The simulator of recurring jobs, with Zeus's names."""

from zeus_stream.zeus.replaced import replaced

_PLAYS = "`zeus-stream simulate` plays the same traces with both policies (docs/how-to/simulate-jobs.md)."
Simulator = replaced("Simulator", _PLAYS)
HistoryEntry = replaced("HistoryEntry", _PLAYS)
