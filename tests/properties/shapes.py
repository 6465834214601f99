"""Every policy and every capacity, alone and nested: the shapes that contracts and machines are run over."""

from collections.abc import Callable, Hashable
from math import inf

from fairlead.capacities import (
    Both,
    InFlight,
    LeasedSlots,
    LeasedTokens,
    Pools,
    Reserved,
    Slots,
    TokenBucket,
)
from fairlead.capacities.load import LoadBucket
from fairlead.capacities.quotas import Quotas
from fairlead.core import Capacity, Policy, Ticket
from fairlead.policies import FIFO, Aging, Classes, FairQueue, Level, Planner
from fairlead.policies.elders import Elders
from fairlead.policies.lines import Lines
from fairlead.policies.ranked import Ranked, Ranking
from fairlead.policies.ratio import Ratio, RatioRanking


class ShortestFirst(Policy):
    """What a user writes."""

    def key(self, ticket: Ticket) -> float:
        return ticket.estimate or 60.0


def tenant(ticket: Ticket) -> object:
    return ticket.tenant


def limiting(rate: float, until: float = inf) -> LoadBucket:
    """A load bucket that limits from the beginning."""
    bucket = LoadBucket()
    bucket.set_rate(rate, 0.0, until)
    return bucket


def by_deadline(waiting, now):
    return sorted(waiting, key=lambda ticket: ticket.deadline)


class Urgent(Ranking):
    """A score that rises by one each second from five seconds before the deadline on."""

    def standing(self, ticket: Ticket, now: float) -> tuple[int, float, int]:
        score = max(0.0, now - ticket.deadline + 5) // 1 if ticket.deadline < inf else 0.0
        return -ticket.rank, -score, 0

    def terms(self, ticket: Ticket) -> tuple[object, ...]:
        return ticket.rank, ticket.deadline, ticket.scopes

    def changes_at(self, ticket: Ticket, now: float) -> float:
        if ticket.deadline == inf:
            return inf
        return max(now // 1 + 1, ticket.deadline // 1 - 5)


def levels(inside: Callable[[], Policy] = FIFO) -> list[Level]:
    return [
        Level("bulk", inside, starvation=4.0),
        Level("default", inside, starvation=2.0),
        Level("interactive", inside),
    ]


LIMITED = [
    Level("bulk", queue_limit=1, wait_limit=60.0, starvation=4.0),
    Level("default", starvation=2.0),
    Level("interactive", wait_limit=20.0),
]


def lent_tokens(**settings) -> LeasedTokens:
    """Cut off from its ledger: the only time that tokens come to it by themselves."""
    tokens = LeasedTokens(4, **settings)
    tokens.lose("local", tokens.stand_in(1.0, 4, None))
    return tokens


def lent_slots() -> LeasedSlots:
    slots = LeasedSlots(3, by=tenant, expire_after=30.0)
    slots.lose("local", 1, 0)
    return slots


def steadily(key: Hashable) -> FairQueue:
    """Fair among tenants; whoever is first there stays it as time passes."""
    return FairQueue("tenant")


steadily.withholds = False  # type: ignore[attr-defined]
steadily.steady = True  # type: ignore[attr-defined]


POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": FIFO,
    "fifo with a limit": lambda: FIFO(limit=2),
    "aging": Aging,
    "aging to a near ceiling": lambda: Aging(rate=10, ceiling=60),
    "key": ShortestFirst,
    "classes": lambda: Classes(*levels(), budget=2),
    "classes with limits": lambda: Classes(*LIMITED, limit=4),
    "classes of aging": lambda: Classes(*levels(Aging), budget=3),
    "classes of fair queues": lambda: Classes(*levels(lambda: FairQueue("tenant"))),
    "classes of fair queues of aging": lambda: Classes(
        *levels(lambda: FairQueue("tenant", inside=Aging))
    ),
    "fair": lambda: FairQueue("tenant", weights={"a": 3}),
    "fair of fair": lambda: FairQueue("workload", inside=lambda key: FairQueue("tenant")),
    "fair of fair, steady": lambda: FairQueue("workload", inside=steadily),
    "classes without a cure": lambda: Classes(
        Level("bulk"), Level("default", FairQueue), Level("interactive")
    ),
    "fair of classes": lambda: FairQueue("workload", inside=lambda key: Classes(*levels())),
    "fair of keys": lambda: FairQueue("tenant", inside=ShortestFirst),
    "planner": lambda: Planner(by_deadline),
    "ranked": lambda: Ranked(Urgent()),
    "ratio": lambda: Ratio(RatioRanking()),
    "fair of ranked": lambda: FairQueue("workload", inside=lambda key: Ranked(Urgent())),
    "elders of keys": lambda: Elders(ShortestFirst(), 4.0, budget=2),
    "lines of elders of fair of ranked": lambda: Lines(
        "pool",
        lambda key: Elders(FairQueue("tenant", inside=lambda key: Ranked(Urgent())), 4.0),
    ),
    "classes of planners": lambda: Classes(*levels(lambda: Planner(by_deadline))),
}

CAPACITIES: dict[str, Callable[[], Capacity]] = {
    "slots": lambda: Slots(2),
    "reserved": lambda: Reserved(4, (0, 1, 1)),
    "reserved, lingering": lambda: Reserved(4, (0, 1, 2), linger=3.0),
    "reserved, not lent": lambda: Reserved(4, (0, 1, 1), lend=False),
    "bucket": lambda: TokenBucket(1.0, burst=4),
    "bucket in intervals": lambda: TokenBucket(1.0, burst=4, interval=2.0),
    "bucket with debt": lambda: TokenBucket(1.0, burst=2, oversize="debt"),
    "bucket per tenant": lambda: TokenBucket(0.5, burst=3, by=tenant),
    "load bucket": lambda: limiting(2.0),
    "in flight": lambda: InFlight(4),
    "in flight and bucket": lambda: Both(InFlight(5), TokenBucket(2.0, burst=6)),
    "in flight per tenant": lambda: InFlight(3, by=tenant, expire_after=30.0),
    "leased tokens, cut off": lent_tokens,
    "leased tokens per tenant, cut off": lambda: lent_tokens(by=tenant),
    "leased slots, cut off": lent_slots,
    "pools": lambda: Pools({"ocr": 2, "gpu": 1}),
    "quotas": lambda: Quotas("tenant", {"a": 2, "b": 1}),
    "slots and bucket per tenant": lambda: Both(Slots(3), TokenBucket(0.5, burst=3, by=tenant)),
    "reserved and in flight": lambda: Both(
        InFlight(3, by=tenant), Reserved(4, (0, 1, 1), linger=1.0)
    ),
    "pools and bucket": lambda: Both(Pools({"ocr": 2, "gpu": 2}), TokenBucket(1.0, burst=4)),
    "both in both": lambda: Both(
        Both(Pools({"ocr": 2, "gpu": 1}), InFlight(3, by=tenant), name="inner"),
        TokenBucket(2.0, burst=6, by=lambda ticket: ticket.workload, oversize="debt"),
        Slots(3),
    ),
}
