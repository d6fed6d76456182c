"""Owners: the host of a GPU or a session, the user of a job or a run. The first to name it is it. Pure.

Keys bind a collector to one host, but say nothing of its GPUs and sessions. A second host that names one
gets a row in ``gaps``. A GPU passes to it once the first has sent nothing for SILENT_NS. That is time of the
analyzer's own log: the clock of the second host is its own word.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from analyzers.results.result import OWN
from zeus_stream.protocol.fields import user_name

SILENT_NS = 60_000_000_000
MAX_CLAIMS = 1_000
"""Claims that are remembered; the oldest is forgotten, and becomes a row again."""
MAX_NAMES = 10_000
"""Names whose owner is remembered. The owner of most of them loses the oldest."""
T = TypeVar("T", bound=Hashable)
_OF_USER = re.compile(r" \(user (\d+)\)$")


class Claims:
    """Claims of hosts to what belongs to another."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], tuple[int, int]] = {}
        """By host and name: since when it is claimed (time of the own log), and the owner's time then."""

    def objection(self, host: str, name: str, owner: str) -> str | None:
        """Return why a host may not speak for something, the first time that it tries; else None."""
        if (host, name) in self._claims:
            return None
        self._claims[host, name] = (0, -1)
        if len(self._claims) > MAX_CLAIMS:
            del self._claims[next(iter(self._claims))]
        return (
            f"{name}: what {host} says of it was not interpreted: it belongs to {owner}. Look which collector"
            " has a wrong name or key."
        )

    def passes(self, host: str, name: str, owner: str, now_ns: Mapping[str, int]) -> bool:
        """Tell whether something passes to a host that claims it, since its owner is silent for so long."""
        since_ns, then_ns = self._claims.get((host, name), (0, -1))
        owner_ns, own_ns = now_ns.get(owner, 0), now_ns.get(OWN, 0)
        if owner_ns != then_ns or own_ns < since_ns:  # it has sent something, or our own host was restarted
            if (host, name) in self._claims:
                self._claims[host, name] = (own_ns, owner_ns)
            return False
        if own_ns - since_ns < SILENT_NS:
            return False
        del self._claims[host, name]
        return True


class Owners(Generic[T]):
    """Names, each of which belongs to the first that used it."""

    def __init__(self, known: Mapping[str, T]) -> None:
        """``known``: by name, its owner; the names that were used last come last."""
        self._of: dict[str, T] = {}
        self._names: defaultdict[T, dict[str, None]] = defaultdict(dict)
        """By owner."""
        for name, owner in known.items():
            self.owner(name, owner)

    def owner(self, name: str, asker: T) -> T:
        """Return the owner of a name. If nobody has it, it is the asker's from now on."""
        if (owner := self._of.get(name)) is not None:
            return owner
        self._of[name] = asker
        self._names[asker][name] = None
        if len(self._of) > MAX_NAMES:
            most = max(self._names.values(), key=len)
            oldest = next(iter(most))
            del most[oldest], self._of[oldest]
        return asker


def name_of(owners: Owners[int], name: str, uid: int) -> str:
    """Return the name under which a user's job or run is known.

    A name that ends as another user's names do is that user's, so that nobody can take it in advance.
    """
    of_user = _OF_USER.search(name)
    owner = int(of_user[1]) if of_user else owners.owner(name, uid)
    return name if owner == uid else user_name(name, uid)
