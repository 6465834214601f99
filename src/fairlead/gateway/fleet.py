"""The backends together: who is well, how much they may run, and which one gets the next call.

Health is looked at by one task per backend; a connection that fails marks its backend at once, and looking brings it
back.  Slots are counted per *pool*: backends that can stand in for each other.  With `pool_by: model` two backends that
share a model share a pool, and a pool's name is its models.  A backend that answers with faults is ejected for a time
(`outliers`).  Who is admitted is decided elsewhere, by the numbers given
here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp

from fairlead.errors import Misuse
from fairlead.gateway import settings as described
from fairlead.gateway.outliers import FAULTS, Outliers, Record
from fairlead.gateway.outliers import Outcome as Outcome
from fairlead.gateway.reservations import ONLY, connected, declared, pool_name
from fairlead.gateway.upstream import Upstream, in_use, look
from fairlead.gateway.values import MOST_SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from fairlead.gateway.places import Place

WORDS = {
    "error": "it answered with a status of 500 or above",
    "failed": "it gave no whole answer",
}
WEIGHED_FOR = 0.1  # seconds for which penalties stay as they are while no try fails
LOST_INTERVAL = 1.0  # seconds between looks at a backend that is down, at most

log = logging.getLogger("fairlead.gateway")


class Fleet:
    """The backends of one gateway."""

    def __init__(self, settings: described.Settings, on_change: Callable[[], None]) -> None:
        self._settings = settings
        self._on_change = on_change
        self.on_leave: Callable[[str], object] = lambda url: None
        self._upstreams: dict[str, Upstream] = {}
        self._leaving: list[Upstream] = []
        self._followers: dict[Upstream, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._choices = 0
        self._outliers = Outliers(settings.outliers)
        self._weigh_at = 0.0
        self._pools: dict[str, list[Upstream]] = {}
        self._pool_of: dict[str, str] = {}
        for given in settings.upstreams:
            self._upstreams[given.url] = Upstream(given, from_file=True)
        self._regroup()
        self._last = self._standing()

    async def start(self) -> None:
        """Begin to look at every backend; return after the first look at each, or when its time is up."""
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=False,
        )
        first = [self._follow(upstream) for upstream in self._upstreams.values()]
        if first:
            await asyncio.wait(first, timeout=self._settings.health.timeout + 0.1)

    async def stop(self) -> None:
        """Stop looking."""
        followers = list(self._followers.values())
        self._followers.clear()
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    def add(self, given: described.Upstream) -> Upstream:
        """Take a backend into the fleet at run time."""
        if given.url in self._upstreams:
            raise Misuse(f"{given.url} is in the fleet already; remove it first to change it")
        return self._enter(given, from_file=False)

    def remove(self, url: str) -> bool:
        """Take a backend out: nothing new goes there, what runs there drains; False if it is unknown."""
        if url not in self._upstreams:
            return False
        self._leave(self._upstreams[url])
        self._regroup()
        self._changed()
        return True

    def retune(self, settings: described.Settings) -> None:
        """Follow a changed configuration: it decides on what it lists; what was added at run time stays."""
        self._settings = settings
        self._outliers.settings = settings.outliers
        self._weigh_at = 0.0
        listed = {given.url: given for given in settings.upstreams}
        for upstream in list(self._upstreams.values()):
            if upstream.from_file and upstream.url not in listed:
                self._leave(upstream)
        for url, given in listed.items():
            known = self._upstreams.get(url)
            if known is None:
                self._enter(given, from_file=True)
            else:
                known.adopt(given, from_file=True)
                known.nudge.set()
        self._regroup()
        self._changed()

    def capacities(self) -> dict[str, int]:
        """Count the slots of each pool that can be used now."""
        return {name: self._slots(members) for name, members in self._pools.items()}

    def _slots(self, members: Iterable[Upstream]) -> int:
        """Add up what backends take; a `capacity` for all of them stands in for those that have not said."""
        usable = in_use(members)
        total = sum(upstream.capacity for upstream in usable)
        fixed = self._settings.capacity
        if fixed is not None and self._settings.pool_by is None and total:
            total = fixed if any(one.bound is None for one in usable) else min(fixed, total)
        return min(total, MOST_SLOTS)

    def declared(self) -> dict[str, int]:
        """Count the slots that the configuration declares for each pool, up or down; 0 where it leaves them open."""
        fixed = None if self._settings.pool_by is not None else self._settings.capacity
        slots = {}
        for name, members in self._pools.items():
            total = declared(members)
            if fixed is not None and members:
                total = fixed if total is None else min(fixed, total)
            slots[name] = total or 0
        return slots

    def bound(self) -> int | None:
        """Return how many calls all usable backends take together; None if one of them has not said."""
        usable = in_use(self._upstreams.values())
        if any(one.bound is None for one in usable):
            return None
        return sum(one.capacity for one in usable)

    @property
    def empty(self) -> bool:
        """Whether there is no backend at all, and so none that could know a model."""
        return not self._upstreams

    def pool_of(self, model: str | None) -> str | None:
        """Name the pool that runs a model; None if no backend knows it, or none was named and it matters."""
        every = self._upstreams.values()
        if every and model is not None and not any(one.serves(model) for one in every):
            return None
        if self._settings.pool_by is None:
            return ONLY
        if model is not None and model in self._pool_of:
            return self._pool_of[model]
        return next(iter(self._pools)) if len(self._pools) == 1 else None

    def runs(self, model: str | None) -> bool:
        """Tell whether a backend that serves a model can take a call now."""
        return any(
            upstream.usable and upstream.capacity > 0 and upstream.serves(model)
            for upstream in self._upstreams.values()
        )

    def may_run(self, model: str | None) -> bool:
        """Tell whether a backend that serves a model is well, or has not been looked at yet."""
        return any(
            (upstream.usable or upstream.awaited) and upstream.serves(model)
            for upstream in self._upstreams.values()
        )

    def next(
        self, place: Place | None, model: str | None, tried: Collection[Upstream]
    ) -> Upstream | None:
        """Return the backend for the next try of a request: first where it has its place, then where there is room.

        A request without a place goes to any.
        """
        if place is None:
            return self.choose(model, tried)
        here = place.upstream
        if place.untried:
            # It was chosen when the request started, and counts as chosen now.
            place.untried = False
            self._choices += 1
            record, number = here.record, self._choices
            if record.probe == place.number:
                record.probe = number
            here.used = place.number = number
            if here.usable and here.serves(model):
                return here
            self._outliers.finished(record, number)
        found = self.choose(model, (*tried, here), bounded=True)
        if found is not None:
            place.move(found)
        return found

    def forgo(self, place: Place) -> None:
        """Note that a request ends without a try at the backend where it has its place."""
        self._outliers.finished(place.upstream.record, place.number)

    def has_place(self, model: str | None, freed: Upstream | None = None) -> bool:
        """Return whether `choose` would find a backend with room, were one place of `freed` given back."""
        if freed is not None:
            freed.held -= 1
        try:
            return self._best(model, (), perf_counter(), bounded=True) is not None
        finally:
            if freed is not None:
                freed.held += 1

    def lists(self, model: str) -> bool:
        """Return whether a backend lists a model by name."""
        return model in self._listed

    def choose(
        self, model: str | None, exclude: Collection[Upstream] = (), *, bounded: bool = False
    ) -> Upstream | None:
        """Choose a backend for a model; `used` then is the number of the try.

        One that has room before one that has none, which is not chosen at all if the choice is `bounded`; then the
        least load, in flight / capacity + penalty; of equally loaded ones the least recently used.  An ejected one is
        chosen if its probe is due and the request has failed nowhere else, or if there is no other.
        """
        now = perf_counter()
        if now >= self._weigh_at:
            self._weigh(now)
        best = self._best(model, exclude, now, bounded=bounded)
        if best is not None:
            self._choices += 1
            best.used = self._choices
            if best.record.until is not None:
                self._outliers.chosen(best.record, best.used, now)
        return best

    def _best(
        self, model: str | None, exclude: Collection[Upstream], now: float, *, bounded: bool
    ) -> Upstream | None:
        best: Upstream | None = None
        best_load = (True, True, 0.0, 0)
        for upstream in self._upstreams.values():
            if not upstream.healthy or upstream in exclude or not upstream.serves(model):
                continue
            capacity = upstream.capacity
            if capacity <= 0:
                continue
            full, record = upstream.full, upstream.record
            out = record.until is not None
            if out and not exclude and record.due(now) and not full:
                return upstream
            load = (
                out,
                full,
                max(upstream.held, upstream.in_flight) / capacity + record.penalty,
                upstream.used,
            )
            if best is None or load < best_load:
                best, best_load = upstream, load
        return None if bounded and best_load[1] else best

    def _weigh(self, now: float) -> None:
        self._weigh_at = now + WEIGHED_FOR
        for members in self._pools.values():
            self._outliers.weigh([one.record for one in members if one.usable], now)

    def tried(
        self, upstream: Upstream, outcome: Outcome, now: float, number: int | None = None
    ) -> None:
        """Note how a try ended, by the clock of `answered`; a try that its own client ended is not reported.

        `number` is the backend's `used` as it was chosen.
        """
        record = upstream.record
        peers: list[Record] = []
        if outcome in FAULTS:
            self._weigh_at = 0.0
            if upstream.healthy:  # else it is known better why
                upstream.failed(WORDS[outcome])
            peers = [one.record for one in self._pool_with(upstream) if one.usable]
        if self._outliers.tried(record, outcome, now, number, peers):
            if record.ejected:
                upstream.back_at = time.time() + record.out_for
                log.warning(
                    "upstream %s is ejected for %g s: %s, %d time(s) in a row",
                    upstream.url,
                    record.out_for,
                    WORDS[outcome],
                    record.consecutive,
                )
            else:
                log.info("upstream %s answers again", upstream.url)
            self._changed()

    def _pool_with(self, upstream: Upstream) -> Iterable[Upstream]:
        if self._settings.pool_by is None:
            return self._upstreams.values()
        return next((members for members in self._pools.values() if upstream in members), ())

    def answered(
        self, upstream: Upstream, latency: float, now: float, number: int | None = None
    ) -> None:
        """Learn from the time to the first byte of a call that went well, by any one steady clock."""
        if self._outliers.answered(upstream.record, latency, now, number):
            log.info("upstream %s answers again", upstream.url)
            self._changed()
        if upstream.capacity_rule != "adaptive":
            return
        before = upstream.gradient.limit
        upstream.gradient.sample(latency, upstream.in_flight, now)
        if upstream.gradient.limit != before:
            self._changed()

    def unreachable(self, upstream: Upstream, reason: str) -> None:
        """Stop using a backend that a connection failed to, until it answers again."""
        if upstream.healthy:
            log.warning("upstream %s is unreachable: %s", upstream.url, reason)
            upstream.healthy = False
            upstream.failed(f"it is unreachable: {reason}")
            upstream.nudge.set()
            self._changed()

    def finished(self, upstream: Upstream, number: int | None = None) -> None:
        """Count a call out."""
        upstream.in_flight -= 1
        self._outliers.finished(upstream.record, number)
        if upstream.draining and not upstream.in_flight and upstream in self._leaving:
            self._leaving.remove(upstream)
            log.info("upstream %s has drained", upstream.url)

    @property
    def up(self) -> list[Upstream]:
        """The backends that calls may be sent to."""
        return [upstream for upstream in self._upstreams.values() if upstream.usable]

    @property
    def mounts(self) -> frozenset[str]:
        """The paths that the URLs of backends add in front of a request's path."""
        return self._mounts

    @property
    def lists_differ(self) -> bool:
        """Whether the list of models that a backend gives is not the whole truth."""
        every = self._upstreams.values()
        return len(every) > 1 or any(one.models is not None for one in every)

    def members(self, pool: str) -> list[Upstream]:
        """Return the backends of a pool."""
        return list(self._pools.get(pool, ()))

    def outages(self) -> dict[str, str]:
        """Return why each pool that has no backend up has none; a fleet without backends is one such pool."""
        return {
            name: f"no backend is up, of {len(members)}" if members else "there is no backend"
            for name, members in (self._pools or {ONLY: []}).items()
            if not any(one.usable for one in members)
        }

    @property
    def down(self) -> bool:
        """Whether no pool has a backend that is up."""
        return len(self.outages()) == max(1, len(self._pools))

    def states(self) -> dict[str, int]:
        """Count the backends in each state."""
        found = Counter(one.state for one in (*self._upstreams.values(), *self._leaving))
        return {state: found[state] for state in ("healthy", "ejected", "unhealthy", "draining")}

    def describe(self) -> list[dict[str, Any]]:
        """Show every backend, those that drain last."""
        return [upstream.describe() for upstream in (*self._upstreams.values(), *self._leaving)]

    def _enter(self, given: described.Upstream, *, from_file: bool) -> Upstream:
        upstream = self._upstreams[given.url] = Upstream(given, from_file=from_file)
        if self._session is not None:
            self._follow(upstream)
        self._regroup()
        self._changed()
        return upstream

    def _leave(self, upstream: Upstream) -> None:
        del self._upstreams[upstream.url]
        self.on_leave(upstream.url)
        upstream.draining = True
        follower = self._followers.pop(upstream, None)
        if follower is not None:
            follower.cancel()
        if upstream.in_flight:
            self._leaving.append(upstream)

    def _follow(self, upstream: Upstream) -> asyncio.Future[None]:
        """Look at a backend from now on; the future is done after the first look."""
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._followers[upstream] = asyncio.create_task(self._keep_looking(upstream, seen))
        return seen

    async def _keep_looking(self, upstream: Upstream, seen: asyncio.Future[None]) -> None:
        session = self._session
        if session is None:
            return
        while True:
            if upstream.asked_often or not upstream.healthy:
                found = await look(session, upstream, self._settings.health.timeout)
                upstream.report(found.reported, asyncio.get_running_loop().time())
                if found.healthy is not upstream.healthy:
                    level = logging.INFO if found.healthy else logging.WARNING
                    state = "healthy" if found.healthy else "unhealthy"
                    log.log(level, "upstream %s is %s", upstream.url, state)
                if not found.healthy and (upstream.healthy or upstream.awaited):
                    upstream.failed("it did not answer well when it was looked at")
                upstream.healthy, upstream.awaited = found.healthy, False
                self._changed()
            if not seen.done():
                seen.set_result(None)
            upstream.nudge.clear()
            interval = self._settings.health.interval
            if upstream.healthy:
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval if upstream.asked_often else None):
                        await upstream.nudge.wait()
            # A backend that just failed is not asked at once: it would answer while it falls.
            if not upstream.healthy:
                await asyncio.sleep(min(interval, LOST_INTERVAL))

    def _changed(self) -> None:
        self._weigh_at = 0.0
        for members in self._pools.values():
            healthy = [one.record for one in members if one.usable]
            self._outliers.keep_bound(healthy, perf_counter())
        now = self._standing()
        if now != self._last:
            self._last = now
            self._on_change()

    def _standing(self) -> tuple[object, ...]:
        """Tell what others follow: the slots, who is down, and whether models matter."""
        every = self._upstreams.values()
        down = [one.url for one in every if not (one.healthy or one.awaited)]
        places = [(one.url, one.bound, one.record.ejected) for one in every if one.usable]
        return self.capacities(), places, down, self.lists_models

    def _regroup(self) -> None:
        members = list(self._upstreams.values())
        self._mounts = frozenset(urlsplit(member.url).path for member in members)
        self._listed = frozenset(model for member in members for model in member.models or ())
        by_model = self._settings.pool_by is not None
        self.lists_models = by_model or any(member.models is not None for member in members)
        if not by_model:
            self._pools, self._pool_of = {ONLY: members}, {}
            return
        self._pools, self._pool_of = {}, {}
        for group in connected(members):
            models = sorted({model for member in group for model in member.models or ()})
            name = pool_name(models)
            self._pools[name] = group
            self._pool_of.update(dict.fromkeys(models, name))
