"""The policies of the simulator, with Zeus's names."""

import sys

from zeus_stream.zeus.replaced import replaced

_PLAYS = "`zeus-stream simulate` plays the same traces with both policies (docs/how-to/simulate-jobs.md)."
BatchSizeOptimizer = replaced("BatchSizeOptimizer", _PLAYS)
PowerLimitOptimizer = replaced("PowerLimitOptimizer", _PLAYS)
PruningGTSBatchSizeOptimizer = replaced("PruningGTSBatchSizeOptimizer", _PLAYS)
JITPowerLimitOptimizer = replaced("JITPowerLimitOptimizer", _PLAYS)
sys.modules[f"{__name__}.optimizer"] = sys.modules[__name__]
"""Zeus's scripts import the policies from either module."""
