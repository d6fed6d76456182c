"""Which host speaks for a GPU or a session: the one that named it first, while it is followed. Pure.

Keys bind a collector to one host, but say nothing of its GPUs and sessions. A second host that names one
gets a row in ``gaps``. A GPU passes to it once the first has sent nothing for SILENT_NS of the second's time.
"""

from collections.abc import Mapping

SILENT_NS = 60_000_000_000
MAX_CLAIMS = 1_000
"""Of others; the oldest is forgotten, and becomes a row again."""


class Claims:
    """Claims of hosts to what belongs to another."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], tuple[int, int]] = {}
        """By host and name: since when it is claimed (frame time of the host), and the owner's time then."""

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
        owner_ns, host_ns = now_ns.get(owner, 0), now_ns[host]
        if owner_ns != then_ns:
            if (host, name) in self._claims:
                self._claims[host, name] = (host_ns, owner_ns)
            return False
        if host_ns - since_ns < SILENT_NS:
            return False
        del self._claims[host, name]
        return True
