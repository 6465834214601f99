"""Gateways, the books they share and their ways to them, on a virtual clock: the real script, the real leases.

The script runs in a real Valkey, with the time and the identity of its server given from here.  Books are lost, are
rolled back, stand still and move to another server; ways are cut and answers are lost.  What runs is counted after
every event.
"""

import json
import random
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

import redis

from fairlead.core import Gate, State, Ticket
from fairlead.core.gate import Change
from fairlead.gateway.sharing import NAME, SILENT, SharedSlots, claim_of
from fairlead.ledger.ledger import PACE, RETRY, SWEEP
from fairlead.ledger.link import Fault
from fairlead.ledger.slots_lease import SlotsLease
from fairlead.policies import FairQueue

PREFIX = "model"
SLOW, GIVEN_UP = 0.15, 0.5  # seconds, as in the link


def scripted(text: str) -> str:
    """Have a script take the time and the server's identity from its arguments."""
    clock, server = "redis.call('TIME')", "pcall(redis.call, 'INFO', 'server')"
    assert clock in text
    assert server in text
    text = text.replace(clock, "cjson.decode(ARGV[2])")
    return text.replace(server, "true, 'run_id:' .. ARGV[3]")


class Request(Ticket):
    """A request that lasts a given time."""

    lasting = 0.0


class Server:
    """The books, as one server has them."""

    def __init__(self, client: redis.Redis, text: str) -> None:
        self.client, self.script = client, client.register_script(scripted(text))
        self.identity = count(1)
        self.current = next(self.identity)
        self.changed_at = -inf
        self.frozen = False

    def run(self, now: float, key: str, arg: str) -> list[str]:
        clock = [str(int(now)), f"{round(now % 1 * 1e6):06d}"]
        args = [arg, json.dumps(clock), str(self.current)]
        return [part.decode() for part in self.script(keys=[key], args=args)]

    def copy(self) -> dict[Any, Any]:
        return {key: self.client.get(key) for key in self.client.scan_iter()}

    def flush(self, now: float) -> None:
        self.changed_at = now
        self.client.flushdb()

    def become(self, books: dict[Any, Any], now: float) -> None:
        """Another server takes over, with these books."""
        self.current = next(self.identity)
        self.changed_at = now
        self.client.flushdb()
        for key, value in books.items():
            self.client.set(key, value)


class Member:
    """One gateway: a gate, a lease, and what the ledger's exchange does with it."""

    def __init__(self, name: str, scene: "Scene", on_loss: str) -> None:
        self.name, self.scene = name, scene
        self.slots = SharedSlots(0, flow=claim_of, name=NAME, keeps=True)
        self.gate = Gate(FairQueue("tenant"), self.slots)
        self.lease = SlotsLease("", self.slots, 0, SILENT, on_loss, self.adjust, None)  # type: ignore[arg-type]
        self.lease.resize(scene.total)
        self.seq = count(1)
        self.lost = False
        self.cut_until = -inf
        self.frozen_until = -inf
        self.next_sweep = 0.0
        self.gone = False

    def adjust(self, change: Change) -> None:
        self.told(self.gate.adjust(change, self.scene.now))

    def exchange(self) -> None:
        """Begin one exchange; what becomes of it is decided by the scene."""
        scene, now = self.scene, self.scene.now
        if self.gone:
            return
        if now < self.frozen_until:
            scene.at(self.frozen_until, self.exchange)
            return
        asked = []
        if not self.lost:
            sweep = now >= self.next_sweep
            if sweep:
                self.next_sweep = now + SWEEP
            asked = self.lease.calls(PREFIX, self.name, next(self.seq), now, sweep)
        there = now + scene.rng.uniform(0, 0.01)
        scene.at(there, lambda: self.arrive(asked, now))

    def arrive(self, asked: Any, sent_at: float) -> None:
        scene = self.scene
        cut = scene.now < self.cut_until
        lost_way = not cut and scene.rng.random() < scene.drops
        if scene.server.frozen:
            if not cut:
                scene.held.append(lambda: self.execute(asked))
            answers = None
        elif cut:
            answers = None
        else:
            answers = self.execute(asked)
            if lost_way:
                answers = None
        if answers is None:
            if self.lease.on_loss != "closed" and not self.lost:
                scene.at(sent_at + SLOW, self.suspend)
            scene.at(sent_at + GIVEN_UP, lambda: self.lose(sent_at))
        else:
            back = scene.now + scene.rng.uniform(0, 0.01)
            scene.at(back, lambda: self.receive(asked, answers, sent_at))

    def execute(self, asked: Any) -> list[list[str]]:
        server, now = self.scene.server, self.scene.now
        return [server.run(now, call.key, call.args[0]) for _, _, call in asked]

    def suspend(self) -> None:
        if not self.lost and not self.lease.lost:
            self.lease.suspended = True
            self.lease.lose(1, 0, self.scene.now)

    def lose(self, sent_at: float) -> None:
        if self.gone:
            return
        self.lost = True
        self.lease.lose(1, 0, self.scene.now)
        self.scene.at(max(self.scene.now, sent_at + RETRY), self.exchange)

    def receive(self, asked: Any, answers: list[list[str]], sent_at: float) -> None:
        now = self.scene.now
        if self.gone:
            return
        if now < self.frozen_until:
            self.scene.at(self.frozen_until, lambda: self.receive(asked, answers, sent_at))
            return
        if now - sent_at > GIVEN_UP:
            self.lose(sent_at)
            return
        if self.lost or self.lease.lost:
            self.lost = False
            self.lease.regain()
        for (_, want, _), answer in zip(asked, answers, strict=True):
            try:
                self.lease.answer(want, answer, sent_at, now, PACE)
            except Fault as fault:
                raise AssertionError(str(fault)) from fault
        self.scene.at(now + 0.025, self.exchange)

    # Requests

    def request(self, lasting: float) -> None:
        if self.gone or self.scene.now < self.frozen_until:
            return
        ticket = Request(tenant="t", wait_until=self.scene.now + 20)
        ticket.lasting = lasting
        self.told([ticket, *self.gate.offer(ticket, self.scene.now)])

    def told(self, tickets: Any) -> None:
        for ticket in tickets:
            if ticket.state is State.RUNNING:
                self.scene.at(
                    self.scene.now + ticket.lasting, lambda ticket=ticket: self.finish(ticket)
                )

    def finish(self, ticket: Ticket) -> None:
        if self.scene.now < self.frozen_until:
            self.scene.at(self.frozen_until, lambda: self.finish(ticket))
            return
        if ticket.state is State.RUNNING:
            self.told(self.gate.finish(ticket, self.scene.now))


class Scene:
    """Some gateways, one server and a random history."""

    def __init__(self, server: Server, seed: int, *, total: int, drops: float = 0.0) -> None:
        self.server, self.rng = server, random.Random(seed)
        self.now = 1000.0 + self.rng.random()
        self.total, self.drops = total, drops
        self.members: list[Member] = []
        self.held: list[Any] = []  # what a server that stands still has not read yet
        self.most = 0
        self.log: list[str] = []
        self._events: list[Any] = []
        self._number = count()

    def at(self, when: float, deed: Any) -> None:
        heappush(self._events, (when, next(self._number), deed))

    def note(self, text: str) -> None:
        self.log.append(f"{self.now:.3f} {text}")

    def join(self, name: str, on_loss: str) -> Member:
        member = Member(name, self, on_loss)
        self.members.append(member)
        member.exchange()
        return member

    def freeze(self) -> None:
        self.note("freeze")
        self.server.frozen = True

    def thaw(self) -> None:
        self.note("thaw")
        self.server.frozen = False
        held, self.held = self.held, []
        self.rng.shuffle(held)
        for deed in held:
            deed()

    def running(self) -> int:
        return sum(member.gate.active for member in self.members)

    def state(self) -> str:
        each = [(one.name, one.gate.active, one.slots.held(NAME)) for one in self.members]
        said = f"{self.running()} of {self.total} at {self.now:.3f}: {each}"
        return "\n".join([said, *self.log])

    def run(self, until: float) -> None:
        """Carry out what is due, in order; nothing ever exceeds the total."""
        while self._events and self._events[0][0] <= until:
            self.now, _, deed = heappop(self._events)
            deed()
            for member in self.members:
                member.told(
                    member.gate.advance(self.now) if self.now >= member.frozen_until else ()
                )
            running = self.running()
            self.most = max(self.most, running)
            if running > self.total:
                raise AssertionError(self.state())
        self.now = max(self.now, until)
