"""One consumer group in memory: who is in it, what each should hold and what each holds.

Pure and unlocked: testing/streams.py calls it under its lock.  A *round* is one rebalance.  It begins when
somebody comes, goes, or topics grow, and is over when every member has joined it, which a member does when it
polls; one that stops polling holds a round up until it is expelled, as on a real broker.

Cooperative: a member keeps what it may keep, gives up the rest when it next polls, and gets what others have given
up.  Eager: it gives up everything to join a round, and gets its share when the round is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.streams.broker import Tp


@dataclass(slots=True)
class Place:
    """Where a member reads in a partition it holds."""

    position: int
    paused: bool = False
    eof_told_at: int | None = None


@dataclass(slots=True, eq=False)
class Member:
    """Somebody in a group.  A ghost has no client: it joins every round at once and reads nothing."""

    name: str
    topics: frozenset[str]
    polled_at: float
    ghost: bool = False
    joined: int = 0
    expelled: bool = False
    held: dict[Tp, Place] = field(default_factory=dict)
    to_revoke: set[Tp] = field(default_factory=set)
    to_lose: set[Tp] = field(default_factory=set)


class Group:
    """Membership, targets and offsets of one group."""

    def __init__(self, name: str, *, eager: bool) -> None:
        self.name = name
        self.eager = eager
        self.round = 0
        self.members: dict[str, Member] = {}
        self.offsets: dict[Tp, int] = {}
        self.notes: dict[Tp, str] = {}  # beside the offsets
        self.target: dict[Tp, str] = {}

    @property
    def rebalancing(self) -> bool:
        """Say whether somebody has yet to join the round, or to hand over what is no longer his."""
        return any(
            member.joined < self.round or any(self._leaves(member, tp) for tp in member.held)
            for member in self.members.values()
        )

    def owner(self, tp: Tp) -> Member | None:
        return next((member for member in self.members.values() if tp in member.held), None)

    def enter(self, member: Member, partitions: Mapping[str, int]) -> None:
        self.members[member.name] = member
        member.expelled = False
        self.begin(partitions)

    def leave(self, member: Member, partitions: Mapping[str, int]) -> None:
        if self.members.pop(member.name, None) is not None:
            self.begin(partitions)

    def begin(self, partitions: Mapping[str, int]) -> None:
        """Begin a round: work out who should hold what."""
        self.round += 1
        members = list(self.members.values())
        wanted = sorted({topic for member in members for topic in member.topics})
        tps = [Tp(topic, number) for topic in wanted for number in range(partitions.get(topic, 0))]
        if self.eager:
            self.target = ranges(members, tps)
        else:
            held = {tp: member.name for member in members for tp in member.held}
            self.target = sticky(members, tps, held)
        for member in members:
            if member.ghost:
                self.step_ghost(member)

    def step_ghost(self, member: Member) -> None:
        self.give_up(member, self.leaving(member))
        member.joined = self.round
        for tp in self.coming(member):
            member.held[tp] = Place(0)

    def settle_ghosts(self) -> None:
        for member in self.members.values():
            if member.ghost:
                self.step_ghost(member)

    def _leaves(self, member: Member, tp: Tp) -> bool:
        if tp in member.to_revoke:
            return True
        if self.eager:
            return member.joined < self.round
        return self.target.get(tp) != member.name

    def leaving(self, member: Member) -> list[Tp]:
        """Say what a member has to give up now."""
        return sorted(tp for tp in member.held if self._leaves(member, tp))

    def give_up(self, member: Member, tps: Iterable[Tp]) -> None:
        for tp in tps:
            member.held.pop(tp, None)
            member.to_revoke.discard(tp)
            member.to_lose.discard(tp)

    def coming(self, member: Member) -> list[Tp]:
        """Say what a member may take now: what is its own by target and nobody holds."""
        if self.eager and any(other.joined < self.round for other in self.members.values()):
            return []
        taken = {tp for other in self.members.values() for tp in other.held}
        return sorted(
            tp for tp, name in self.target.items() if name == member.name and tp not in taken
        )


def ranges(members: Sequence[Member], tps: Sequence[Tp]) -> dict[Tp, str]:
    """Cut each topic into runs, one per member that reads it, the first ones longer by one."""
    target = {}
    for topic in sorted({tp.topic for tp in tps}):
        readers = [member.name for member in members if topic in member.topics]
        own = [tp for tp in tps if tp.topic == topic]
        each, more = divmod(len(own), len(readers))
        at = 0
        for index, name in enumerate(readers):
            size = each + (index < more)
            target.update(dict.fromkeys(own[at : at + size], name))
            at += size
    return target


def sticky(members: Sequence[Member], tps: Sequence[Tp], held: Mapping[Tp, str]) -> dict[Tp, str]:
    """Leave everything where it is, share out what is free, then move as little as evens it out."""
    topics = {member.name: member.topics for member in members}
    shares: dict[str, list[Tp]] = {member.name: [] for member in members}
    free = []
    for tp in tps:
        name = held.get(tp)
        if name is not None and tp.topic in topics.get(name, ()):
            shares[name].append(tp)
        else:
            free.append(tp)
    for tp in free:
        readers = [name for name in shares if tp.topic in topics[name]]
        shares[min(readers, key=lambda name: len(shares[name]))].append(tp)
    while _even_out(shares, topics):
        pass
    return {tp: name for name, share in shares.items() for tp in share}


def _even_out(shares: dict[str, list[Tp]], topics: Mapping[str, frozenset[str]]) -> bool:
    """Move one partition from a fuller member to one that has two less, if there is such a pair."""
    for giver in sorted(shares, key=lambda name: -len(shares[name])):
        for taker in sorted(shares, key=lambda name: len(shares[name])):
            if len(shares[giver]) - len(shares[taker]) < 2:
                break
            for tp in reversed(shares[giver]):
                if tp.topic in topics[taker]:
                    shares[giver].remove(tp)
                    shares[taker].append(tp)
                    return True
    return False
