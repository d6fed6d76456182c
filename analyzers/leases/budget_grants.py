"""Power budgets of a site in PostgreSQL: one transaction at a time changes who may use what.

The budget itself is there too: of two of one name, the one set last is in force, or the one that ends first.
Of one that follows a load signal, the machine that has its file renews the values.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from importlib.resources import files
from typing import NamedTuple

import psycopg
from msgspec.structs import astuple

from analyzers.leases.site_leases import SHARD, SiteLeases
from analyzers.power_budget import following
from analyzers.power_budget.allocation import in_force, most_mw, over
from analyzers.power_budget.grants import Grant, GrantedPower, Grants, Member, ShardUse
from zeus_stream.protocol import codec
from zeus_stream.protocol.notes import Budget, BudgetsSet

ABANDONED_S = 5.0
"""A shard whose lease has been over for so long: nobody renews the leases of its limits."""
LEAD_NS = 3_000_000_000
"""A budget that is going down is kept so long before: an exchange, commands and their outcomes take that."""


class SiteGpu(NamedTuple):
    """A GPU of the site whose limit can be set."""

    host: str
    number: int
    """In PCI order."""
    found_mw: int


class BudgetGrants:
    """The budgets of one site, for one thread. Every method may raise StorageError."""

    def __init__(self, leases: SiteLeases) -> None:
        """``leases``: for this thread alone. Make the tables, unless they are there."""
        self._leases = leases
        self._site = leases.site
        self.known: tuple[Budget, ...] = ()
        """Of the site, at the last exchange; those that are over are left out."""
        leases.run(files("analyzers.leases").joinpath("budgets.sql").read_bytes())

    def exchange(
        self,
        budgets: Iterable[Budget],
        gpus: Mapping[str, SiteGpu],
        uses: Iterable[ShardUse],
        now_ns: int,
    ) -> dict[int, tuple[Budget, ...]]:
        """Take in budgets of this process, GPUs of the site and what shards use. Return budgets by shard.

        Args:
            budgets: as set on this machine.
            gpus: by UUID.
            uses: of the shards of this process.
            now_ns: UTC.
        """
        with self._leases.working() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('zs.budgets'))")
            epochs, silent_s = self._shards(connection)
            held = [use for use in uses if epochs.get(use.shard) == use.epoch]
            granted: dict[int, tuple[Budget, ...]] = {use.shard: () for use in held}
            for budget in self._listed(connection, budgets, now_ns):
                book, hosts = self._book(connection, budget.group)
                before = _rows(book)
                self._add(book, hosts, budget, gpus)
                silent = {shard for shard in book.grants if silent_s.get(shard, ABANDONED_S) >= ABANDONED_S}
                book.abandon(silent - granted.keys())
                limit_mw = _limit_mw(budget, book, now_ns)
                for use in held:
                    if (may := book.exchange(use, budget.group, limit_mw)).gpus:
                        granted[use.shard] += (_granted(following.at(budget, now_ns), may),)
                self._keep(connection, budget.group, book, hosts, before)
        return granted

    def hosts(self, shard: int) -> frozenset[str]:
        """Return the hosts of the GPUs that a shard may command."""
        with self._leases.working() as connection:
            rows = connection.execute(
                "SELECT DISTINCT host FROM zs.budget_gpus WHERE site = %s AND shard = %s", (self._site, shard)
            ).fetchall()
        return frozenset(host for (host,) in rows)

    def _shards(self, connection: psycopg.Connection) -> tuple[dict[int, int], dict[int, float]]:
        """Return epochs of shards, and for how many seconds nobody has held them."""
        rows = connection.execute(
            "SELECT substr(name, %s)::integer, epoch, extract(epoch FROM now() - until)::float8"
            " FROM zs.leases WHERE site = %s AND name LIKE %s ORDER BY name FOR SHARE",
            (len(SHARD) + 1, self._site, f"{SHARD}%"),
        ).fetchall()
        return {shard: epoch for shard, epoch, _ in rows}, {shard: late_s for shard, _, late_s in rows}

    def _listed(self, connection: psycopg.Connection, budgets: Iterable[Budget], now_ns: int) -> list[Budget]:
        """Return the budgets of the site that bind or are about to. One that is over leaves."""
        for budget in budgets:
            connection.execute(
                "INSERT INTO zs.budgets AS known VALUES (%s, %s, %s, %s, %s)"
                " ON CONFLICT (site, name) DO UPDATE"
                " SET set_ns = excluded.set_ns, end_ns = excluded.end_ns, body = excluded.body"
                " WHERE (excluded.set_ns, -excluded.end_ns) > (known.set_ns, -known.end_ns)"
                " OR excluded.set_ns = known.set_ns AND excluded.end_ns = known.end_ns"
                " AND excluded.body <> known.body",
                (
                    self._site, budget.group, budget.set_ns, budget.end_ns,
                    codec.encode(BudgetsSet(0, (budget,))),
                ),
            )  # fmt: skip
        rows = connection.execute(
            "SELECT body FROM zs.budgets WHERE site = %s ORDER BY name", (self._site,)
        ).fetchall()
        known = [codec.decode(bytes(body), BudgetsSet).budgets[0] for (body,) in rows]
        for budget in known:
            if over(budget, now_ns):
                which = self._site, budget.group
                connection.execute("DELETE FROM zs.budget_gpus WHERE site = %s AND budget = %s", which)
                connection.execute("DELETE FROM zs.budget_grants WHERE site = %s AND budget = %s", which)
        self.known = tuple(budget for budget in known if not over(budget, now_ns))
        return [budget for budget in self.known if in_force([budget], now_ns + LEAD_NS)]

    def _book(self, connection: psycopg.Connection, name: str) -> tuple[Grants, dict[str, str]]:
        """Return the grants of a budget, and the host of each of its GPUs."""
        where = (self._site, name)
        gpus = connection.execute(
            "SELECT gpu, host, found_mw, shard, wanted, leaving FROM zs.budget_gpus"
            " WHERE site = %s AND budget = %s ORDER BY gpu",
            where,
        ).fetchall()
        grants = connection.execute(
            "SELECT shard, epoch, granted_mw, least_mw, wanted_mw, weight, abandoned FROM zs.budget_grants"
            " WHERE site = %s AND budget = %s ORDER BY shard",
            where,
        ).fetchall()
        members = {gpu: Member(*rest) for gpu, _, *rest in gpus}
        return Grants(members, {shard: Grant(*rest) for shard, *rest in grants}), {
            gpu: host for gpu, host, *_ in gpus
        }

    @staticmethod
    def _add(book: Grants, hosts: dict[str, str], budget: Budget, gpus: Mapping[str, SiteGpu]) -> None:
        """Add GPUs that are new to the site."""
        words = set(budget.gpus)
        for gpu, known in gpus.items():
            names = {gpu, f"{known.host}:{known.number}", f"{known.host}:all"}
            if gpu not in book.members and (not words or words & names):
                book.members[gpu] = Member(known.found_mw)
                hosts[gpu] = known.host

    def _keep(
        self,
        connection: psycopg.Connection,
        name: str,
        book: Grants,
        hosts: Mapping[str, str],
        before: tuple[dict[str, Member], dict[int, Grant]],
    ) -> None:
        """Store the rows that have changed: the fields of `Member` and `Grant` are their last columns."""
        members, grants = before
        connection.cursor().executemany(
            "INSERT INTO zs.budget_gpus VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
            " ON CONFLICT (site, budget, gpu) DO UPDATE SET shard = excluded.shard,"
            " wanted = excluded.wanted, leaving = excluded.leaving",
            [
                (self._site, name, gpu, hosts[gpu], *astuple(each))
                for gpu, each in book.members.items()
                if members.get(gpu) != each
            ],
        )
        connection.cursor().executemany(
            "INSERT INTO zs.budget_grants VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
            " ON CONFLICT (site, budget, shard) DO UPDATE SET epoch = excluded.epoch,"
            " granted_mw = excluded.granted_mw, least_mw = excluded.least_mw,"
            " wanted_mw = excluded.wanted_mw, weight = excluded.weight, abandoned = excluded.abandoned",
            [
                (self._site, name, shard, *astuple(each))
                for shard, each in book.grants.items()
                if grants.get(shard) != each
            ],
        )


def _rows(book: Grants) -> tuple[dict[str, Member], dict[int, Grant]]:
    return (
        {gpu: copy(each) for gpu, each in book.members.items()},
        {shard: copy(each) for shard, each in book.grants.items()},
    )


def _limit_mw(budget: Budget, book: Grants, now_ns: int) -> int:
    """Return what the budget allows from now until what is granted now is in force."""
    found_mw = sum(member.found_mw for member in book.members.values())
    at = (each for at_ns in (now_ns, now_ns + LEAD_NS) for each in in_force([budget], at_ns))
    return min((most_mw(each, found_mw) for each in at), default=found_mw)


def _granted(budget: Budget, use: GrantedPower) -> Budget:
    """Return the budget of one shard: it holds at once, and changes with the next exchange."""
    return Budget(
        group=budget.group,
        limit_mw=use.limit_mw,
        site_mw=budget.limit_mw,
        gpus=use.gpus,
        set_ns=budget.set_ns,
        begin_ns=budget.begin_ns,
        end_ns=budget.end_ns,
        ramp_ns=0,
        way=1.0,
        first=budget.first,
    )
