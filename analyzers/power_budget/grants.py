"""The grants of shards in a site's power budget: what the limits that each commands may add up to. Pure.

    a shard says what its GPUs were read back at -> it gets a grant, and the GPUs that it may command

A GPU that no shard has counts at the limit that was found on it. The first shard with a run on it admits it,
and its count becomes part of that shard's grant. A grant shrinks only to what its holder has confirmed, and
grows only by what nobody else counts: grants and free GPUs never add up to more than the budget, once they
did not. An analyzer that takes a shard over begins with the grant of the holder before.

A GPU that another shard needs is given back by its shard once no run of its own is there. While it is given
back, what was found is set aside for it. The GPUs of a shard that nobody decides on count at what was found:
their leases end, and the others make room before.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct


class Member(Struct):
    """A GPU of the site under the budget."""

    found_mw: int
    shard: int | None = None
    """The shard that may command it."""
    wanted: int | None = None
    """Another shard, which has a run on it."""
    leaving: bool = False
    """Its shard gives it back; what was found is set aside for it."""


class Grant(Struct):
    """The grant of one shard."""

    epoch: int
    granted_mw: int = 0
    least_mw: int = 0
    """The least limits of its GPUs together."""
    wanted_mw: int = 0
    """The limits up to which they gain."""
    weight: float = 1.0
    """Its priority: how much it gets above its least limits, beside others."""
    abandoned: bool = False
    """Nobody decides on the shard."""


class GpuUse(Struct, frozen=True, kw_only=True):
    """A GPU, as the holder of a shard knows it."""

    used_mw: int
    """The highest of what is in force, asked for and allowed."""
    least_mw: int
    wanted_mw: int
    """The limit up to which it gains."""
    busy: bool
    """A run of the shard is on it."""
    returned: bool
    """Nothing of the shard is in force or asked for."""


class ShardUse(Struct, frozen=True, kw_only=True):
    """The use of a shard, as its holder knows it."""

    shard: int
    epoch: int
    gpus: Mapping[str, GpuUse]
    """That it follows, and whose hosts' logs it has read to their end."""
    weight: float = 1.0
    obeyed_mw: Mapping[str, int]
    """By budget, the limit of the last `GrantedPower` of this epoch, if the shard obeys that one."""


class GrantedPower(Struct, frozen=True):
    """The power and the GPUs that a shard may use from now on."""

    limit_mw: int
    gpus: tuple[str, ...]


class Grants:
    """The grants of one budget."""

    def __init__(self, members: dict[str, Member], grants: dict[int, Grant]) -> None:
        """``members``: by GPU, all of the site under the budget; ``grants``: by shard. Both are changed."""
        self.members, self.grants = members, grants

    def promised_mw(self) -> int:
        """Return what may be in force on all GPUs together."""
        free_mw = sum(member.found_mw for member in self.members.values() if member.shard is None)
        return free_mw + sum(grant.granted_mw for grant in self.grants.values())

    def abandon(self, shards: Iterable[int]) -> None:
        """Count the GPUs of shards that nobody decides on at what was found."""
        for shard in shards:
            grant = self.grants[shard]
            grant.abandoned = True
            grant.granted_mw = max(grant.granted_mw, self._found_mw(shard))

    def exchange(self, use: ShardUse, budget: str, most_mw: int) -> GrantedPower:
        """Take in what a shard uses, and return what it may use. ``most_mw``: of the whole budget."""
        grant = self.grants.setdefault(use.shard, Grant(use.epoch))
        mine = {gpu: member for gpu, member in self.members.items() if member.shard == use.shard}
        obeyed_mw = use.obeyed_mw.get(budget) if grant.epoch == use.epoch else None
        if grant.epoch == use.epoch and mine and all(member.leaving for member in mine.values()):
            obeyed_mw = 0  # it commands no GPU under the budget, so none is stated to it
        grant.epoch, grant.abandoned, grant.weight = use.epoch, False, use.weight
        if obeyed_mw is not None and mine.keys() <= use.gpus.keys():
            kept_mw = (
                min(self._targets(most_mw)[use.shard], grant.granted_mw) if _needed(mine, use.gpus) else 0
            )
            self._free(mine, use.gpus, grant, max(obeyed_mw, kept_mw))
        self._admit(use, grant, mine)
        grant.least_mw = sum(_least_mw(gpu, member, use.gpus) for gpu, member in mine.items())
        grant.least_mw += max(
            (_to_return_mw(gpu, mine, use.gpus) for gpu in _needed(mine, use.gpus)), default=0
        )
        grant.wanted_mw = sum(_wanted_mw(gpu, member, use.gpus) for gpu, member in mine.items())
        target_mw = self._targets(most_mw)[use.shard]
        room_mw = most_mw - self.promised_mw()
        grant.granted_mw += max(0, min(target_mw - grant.granted_mw, room_mw))
        if obeyed_mw is not None:
            _hand_over(mine, use.gpus, grant)
        aside_mw = sum(member.found_mw for member in mine.values() if member.leaving)
        limit_mw = min(target_mw, grant.granted_mw)
        if (
            mine.keys() - use.gpus.keys()
        ):  # taken over, and not read to the end: what others have is not its own
            limit_mw = min(limit_mw, grant.granted_mw + min(room_mw, 0))
        limit_mw -= aside_mw + _room_to_return(mine, use.gpus, grant)
        return GrantedPower(
            max(limit_mw, 1), tuple(gpu for gpu, member in mine.items() if not member.leaving)
        )

    def _found_mw(self, shard: int) -> int:
        return sum(member.found_mw for member in self.members.values() if member.shard == shard)

    @staticmethod
    def _free(mine: dict[str, Member], gpus: Mapping[str, GpuUse], grant: Grant, least_mw: int) -> None:
        """Let go of GPUs that were given back, and shrink the grant to what was read back."""
        for gpu, member in tuple(mine.items()):
            if member.leaving and gpus[gpu].returned:
                member.shard, member.leaving, member.wanted = None, False, None
                grant.granted_mw -= member.found_mw
                del mine[gpu]
        aside_mw = sum(member.found_mw for member in mine.values() if member.leaving)
        used_mw = sum(gpus[gpu].used_mw for gpu, member in mine.items() if not member.leaving)
        grant.granted_mw = min(grant.granted_mw, max(used_mw, least_mw) + aside_mw)

    def _admit(self, use: ShardUse, grant: Grant, mine: dict[str, Member]) -> None:
        for gpu, of_gpu in use.gpus.items():
            if not of_gpu.busy or (member := self.members.get(gpu)) is None:
                continue
            if member.shard is None:
                member.shard, mine[gpu] = use.shard, member
                grant.granted_mw += member.found_mw
            elif member.shard != use.shard:
                member.wanted = use.shard

    def _targets(self, most_mw: int) -> dict[int, int]:
        """Return what each shard is to have: its least limits, then by weight up to what it wants."""
        fixed_mw = sum(grant.granted_mw for grant in self.grants.values() if grant.abandoned)
        free_mw = sum(member.found_mw for member in self.members.values() if member.shard is None)
        deciding = {shard: grant for shard, grant in self.grants.items() if not grant.abandoned}
        left_mw = most_mw - free_mw - fixed_mw - sum(grant.least_mw for grant in deciding.values())
        more_mw = share(
            max(left_mw, 0),
            {shard: (grant.wanted_mw - grant.least_mw, grant.weight) for shard, grant in deciding.items()},
        )
        return {shard: grant.least_mw + more_mw[shard] for shard, grant in deciding.items()}


def _least_mw(gpu: str, member: Member, gpus: Mapping[str, GpuUse]) -> int:
    return member.found_mw if member.leaving or gpu not in gpus else gpus[gpu].least_mw


def _wanted_mw(gpu: str, member: Member, gpus: Mapping[str, GpuUse]) -> int:
    """Return the limit up to which a GPU gains; one that others need is given back at what was found."""
    needed = member.wanted is not None and not (gpu in gpus and gpus[gpu].busy)
    return member.found_mw if needed or member.leaving or gpu not in gpus else gpus[gpu].wanted_mw


def _needed(mine: Mapping[str, Member], gpus: Mapping[str, GpuUse]) -> list[str]:
    """Return idle GPUs that other shards need, and that are not given back yet."""
    return [
        gpu
        for gpu, member in mine.items()
        if member.wanted is not None and not member.leaving and gpu in gpus and not gpus[gpu].busy
    ]


def _to_return_mw(gpu: str, mine: Mapping[str, Member], gpus: Mapping[str, GpuUse]) -> int:
    return mine[gpu].found_mw - gpus[gpu].least_mw


def _room_to_return(mine: Mapping[str, Member], gpus: Mapping[str, GpuUse], grant: Grant) -> int:
    """Return what a shard leaves unused to give back idle GPUs that others need: up to half of its slack."""
    needs_mw = [_to_return_mw(gpu, mine, gpus) for gpu in _needed(mine, gpus)]
    slack_mw = max(0, grant.granted_mw - sum(_least_mw(gpu, member, gpus) for gpu, member in mine.items()))
    return min(sum(needs_mw), max([slack_mw // 2, *needs_mw]), slack_mw)


def _hand_over(mine: Mapping[str, Member], gpus: Mapping[str, GpuUse], grant: Grant) -> None:
    """Give back idle GPUs that others need, as far as the grant has room for what was found on them."""
    left_mw = grant.granted_mw - sum(
        gpus[gpu].used_mw if gpu in gpus and not member.leaving else member.found_mw
        for gpu, member in mine.items()
    )
    for gpu in _needed(mine, gpus):
        more_mw = mine[gpu].found_mw - gpus[gpu].used_mw
        if more_mw <= left_mw:
            mine[gpu].leaving, left_mw = True, left_mw - more_mw


def share(left_mw: int, wants: Mapping[int, tuple[int, float]]) -> dict[int, int]:
    """Share power by weight; nobody gets more than it wants. ``wants``: by name, mW and weight."""
    shares = dict.fromkeys(wants, 0)
    open_mw = {name: (want_mw, weight) for name, (want_mw, weight) in wants.items() if want_mw > 0}
    while open_mw:
        by_weight = left_mw / sum(weight * want_mw for want_mw, weight in open_mw.values())
        full = {name for name, (_, weight) in open_mw.items() if weight * by_weight >= 1}
        for name in full or open_mw:
            want_mw, weight = open_mw[name]
            shares[name] = want_mw if full else int(want_mw * weight * by_weight)
            left_mw -= shares[name]
        if not full:
            break
        for name in full:
            del open_mw[name]
    return shares
