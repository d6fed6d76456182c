"""Guarding one device: commands and leases in, instructions out. Pure.

The rules, for one device:

- A record on disk says what was found before every change. No record, no change.
- The value found is the upper bound, and what is restored: when the lease is released or runs out,
  when its run ends, when the collector stops, or when it starts over a dead collector's record.
- Restored is only what is ours: the value last read back, or the one being set (within a driver's
  rounding). Any other value is a stranger's: it stays, the lease ends, and it is the new "found".
- One owner (an analyzer for one run) at a time. A renewal never revives an ended lease. A command that
  comes again gets the outcome it had; one older than its owner's last is stale.

What is under way at the device, and what follows:

    nothing     a SetLimit that passes the rules    -> Recording   WriteRecord
                something of ours, its lease over   -> Restoring   CallRestore
    Recording   RecordWritten                       -> Setting     CallSet
                RecordFailed                        -> nothing     refused: storage
    Setting     SetDone, as asked                   -> nothing     WriteRecord, applied
                SetDone or SetFoundStranger, else   -> nothing     ClearRecord, refused: stranger
                SetFailed                           -> nothing     refused; restored if it was the first
    Restoring   RestoreDone                         -> nothing     ClearRecord, lease ended
                RestoreFailed                       -> nothing     tried again, ever more slowly

Commands that come meanwhile wait, at most MAX_WAITING of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from zeus_stream.messages import Applied, Cause, LeaseEnded, Note, Refused, ReleaseLimit, RenewLeases, SetLimit

ROUNDING_MW = 1_000
"""A driver may round what is set by less than this."""
MAX_WAITING = 16
MAX_OUTCOMES = 64
MAX_OWNERS = 16
"""Owners whose last fence is remembered."""
RETRY_NS = 100_000_000
RETRY_MOST_NS = 5_000_000_000
"""A restore that failed is tried again after RETRY_NS, 2 RETRY_NS, 4 RETRY_NS, ... up to this."""
DEAD = "a collector that died"
"""Owner of what a dead collector left behind."""

Command: TypeAlias = SetLimit | ReleaseLimit
Outcome: TypeAlias = Applied | Refused
