"""A server that keeps the contract of the control API and obeys the test: it can be slow, forgetful, strict or gone.

The dashboard's files come from the package with the headers the real server sends, so that the policy is the real one.
"""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fairlead import __version__
from fairlead.server import static
from fairlead.server.whatif import NOTE
from fairlead.serving.http import Problem
from tests.dashboard.world import PLANNERS, SLOTS, World, summary

RANKS = ("viewer", "operator", "admin")
WORKERS = [
    {
        "id": n,
        "name": f"worker-{n}",
        "executor": "local",
        "slots": slots,
        "process": f"host-{n}:71{n}:5a5365425a40",
        "silent": n == 3,
        "draining": n == 2,
    }
    for n, slots in ((1, 8), (2, 4), (3, 4))
]
BECAUSE = (
    "it waits for publish-14, which waits for score-13; both are ready, "
    "and all 8 slots of 'local' are in use"
)


class Refusal(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Fake:
    """The server, in threads of its own; `with Fake() as server: server.url`."""

    def __init__(self, world: World | None = None, every: float = 0.25) -> None:
        self.world = World() if world is None else world
        self.every = every
        self.events_seen: list[str | None] = []  # the Last-Event-ID of each connection
        self.fail: dict[str, Refusal] = {}  # path below /api/v1: how it fails
        self.silent = False  # no new snapshots
        self._broken = 0  # grows when all streams are cut
        self._ticked = threading.Condition()
        self._ended = threading.Event()
        self._server = self._listen(0)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def _listen(self, port: int) -> ThreadingHTTPServer:
        handler = type("Bound", (Handler,), {"fake": self})
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        return server

    def begin_anew(self) -> None:
        """Forget what a test did; pages of the one before are closed by now."""
        self.cut()
        self.world = World()
        self.fail.clear()
        self.silent = False
        self.events_seen.clear()

    def __enter__(self) -> "Fake":
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._ticker.join()
        self.go_away()

    def _tick(self) -> None:
        while not self._ended.wait(self.every):
            with self._ticked:  # so that after `silent = True; tick()` no other tick comes
                if not self.silent:
                    self.tick()

    def tick(self) -> None:
        with self._ticked:
            self.world.look(time.time())
            self._ticked.notify_all()

    def cut(self) -> None:
        """End every stream of events."""
        with self._ticked:
            self._broken += 1
            self._ticked.notify_all()

    def go_away(self) -> None:
        """Refuse connections until `come_back`."""
        self._server.shutdown()
        self._server.server_close()
        self.cut()

    def come_back(self) -> None:
        self._server = self._listen(self.port)

    def follow(self, after: int, send: Callable[[str], None]) -> None:
        """Send what was missed, then what comes."""
        broken, seen = self._broken, after
        while not self._ended.is_set():
            with self._ticked:
                if broken != self._broken:
                    return
                fresh = [one for one in self.world.snapshots if one["seq"] > seen]
                if not fresh:
                    self._ticked.wait(1)
                    continue
            for one in fresh:
                send(f"event: snapshot\nid: {one['seq']}\ndata: {json.dumps(one)}\n\n")
            told = [one for one in self.world.decisions if one["t"] >= fresh[0]["t"]]
            send(f"event: decision\ndata: {json.dumps({'items': told, 'dropped': 0})}\n\n")
            send(": heartbeat\n\n")
            seen = fresh[-1]["seq"]

    # The API

    def answer(self, method: str, path: str, query: dict[str, str], body: Any, role: str) -> Any:
        if path in self.fail:
            raise self.fail[path]
        needed = "viewer" if method == "GET" else "admin" if method == "PUT" else "operator"
        if RANKS.index(role) < RANKS.index(needed):
            raise Refusal(403, f"{path} needs the role {needed}; the token has {role}")
        if method != "GET":
            self.world.asked.append((method, path, body))
        world, parts = self.world, [unquote(part) for part in path.split("/")]
        match [method, *parts]:
            case ["GET", "overview"]:
                return self.overview(role)
            case ["GET", "history"]:
                return {"snapshots": world.snapshots[-900:]}
            case ["GET", "overrides" | "audit"]:
                return {"items": []}
            case ["GET", "decisions"]:
                return {"items": world.decisions[:-201:-1]}
            case ["GET", "gates", gate, "waiting"]:
                return world.waiting(gate, int(query.get("limit", "50")))
            case ["POST", "gates", _, "adjust"]:
                return self.adjust(body)
            case ["GET", "jobs", "runs"]:
                return self.page(query)
            case ["GET", "jobs", "runs", run]:
                return self.run(run)
            case ["GET", "jobs", "runs", run, "jobs", node, "explain"]:
                job = self.run(run)["jobs"][int(node)]
                return {
                    "job": f"{run}.{node}",
                    "state": job["state"],
                    "reason": "waiting",
                    "expected_at": None,
                    "explanation": f"{job['name']} is {job['state']}: {BECAUSE}",
                }
            case ["POST", "jobs", "runs", run, ("cancel" | "retry" | "sla") as verb]:
                return self.act(run, verb, body)
            case ["GET", "jobs", "workers"]:
                return {"workers": WORKERS}
            case ["GET", "jobs", "planner"]:
                return {"planner": world.planner, "executors": {}, "known": PLANNERS}
            case ["PUT", "jobs", "planner"]:
                world.planner = body["planner"]
                return {"planner": world.planner}
            case ["GET", "streams"]:
                return {"apps": world.snapshots[-1]["streams"]}
            case ["POST", "whatif"]:
                return self.what_if(body)
            case ["GET", "config"]:
                return {"text": world.text, "path": world.path, "problems": []}
            case ["POST", "config", "validate"]:
                return {"problems": problems(body["text"])}
            case ["PUT", "config"]:
                world.text = body["text"]
                return {"path": world.path, "problems": [], "notes": world.notes}
        raise Refusal(404, f"there is no {path}; see /api/openapi.json")

    def overview(self, role: str) -> dict[str, Any]:
        now = time.time()
        return {
            "version": __version__,
            "started": self.world.started,
            "now": now,
            "draining": False,
            "demo": True,
            "role": role,
            "uptime": now - self.world.started,
            "doors": [
                {
                    "name": name,
                    "kind": name,
                    "state": "running",
                    "detail": "",
                    "reason": None,
                    "gates": [gate],
                    "links": {},
                }
                for name, gate in (
                    ("gateway", "gateway/default"),
                    ("flows", "flows/checkout"),
                    ("jobs", "jobs/leader"),
                    ("streams", "streams/workers"),
                )
            ],
        }

    def adjust(self, body: Any) -> dict[str, Any]:
        if body["verb"] == "resize":
            self.world.slots = SLOTS if body["args"] == [None] else int(body["args"][0])
        else:
            self.world.weights[body["args"][0]] = body["args"][1]
        return {"applied": body}

    def page(self, query: dict[str, str]) -> dict[str, Any]:
        wanted = [
            run
            for run in self.world.runs.values()
            if query.get("state", run["state"]) == run["state"]
            and query.get("tenant", run["tenant"]) == run["tenant"]
        ]
        at, limit = int(query.get("cursor", "0")), int(query.get("limit", "50"))
        items = [
            {key: value for key, value in run.items() if key != "jobs"}
            for run in wanted[at : at + limit]
        ]
        return {"items": items, "next": str(at + limit) if at + limit < len(wanted) else None}

    def run(self, name: str) -> dict[str, Any]:
        if name not in self.world.runs:
            raise Refusal(404, f"there is no run {name}; see fairlead jobs list")
        return self.world.runs[name]

    def act(self, name: str, verb: str, body: Any) -> dict[str, Any]:
        run = self.run(name)
        if verb == "sla":
            run.update({f"{kind}_sla": at for kind, at in body.items()})
        elif verb == "cancel":
            run["state"], run["ended"] = "cancelled", time.time()
            for job in run["jobs"]:
                if job["state"] in ("created", "active"):
                    job["state"] = "cancelled"
        else:
            run["state"], run["ended"] = "active", None
        return run

    def what_if(self, body: Any) -> dict[str, Any]:
        for path in body["changes"]:
            if not path.startswith(("capacity", "classes.")):
                raise Refusal(
                    422, f"{path}: gateway/default has no such setting; known: capacity, classes"
                )
        return {
            "before": summary(1.0),
            "after": summary(0.7),
            "observed": observed(),
            "tickets": 48_211,
            "changes": ", ".join(f"{path}={value}" for path, value in body["changes"].items()),
            "note": NOTE,
        }


def observed() -> dict[str, Any]:
    """What happened: the same figures, without those that only a simulation knows."""
    unknown = ("share", "fair", "utilisation", "misplaced")
    groups = {
        dimension: {
            name: {key: value for key, value in found.items() if key not in unknown}
            for name, found in parts.items()
        }
        for dimension, parts in summary(1.1)["groups"].items()
        if dimension != "workload"
    }
    return {"groups": groups}


def problems(text: str) -> list[dict[str, Any]]:
    return [
        {
            "line": number,
            "column": line.index("capacty") + 1,
            "path": "gateway.capacty",
            "message": "unknown key 'capacty'; did you mean capacity?",
        }
        for number, line in enumerate(text.splitlines(), 1)
        if "capacty" in line
    ]


class Handler(BaseHTTPRequestHandler):
    fake: Fake
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.handle_any("GET")

    def do_POST(self) -> None:
        self.handle_any("POST")

    def do_PUT(self) -> None:
        self.handle_any("PUT")

    def handle_any(self, method: str) -> None:
        address = urlsplit(self.path)
        if not address.path.startswith("/api/v1/"):
            self.send_file(address.path)
            return
        path = address.path.removeprefix("/api/v1/")
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        world = self.fake.world
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        role = world.tokens.get(given) if world.tokens else world.role
        try:
            if role is None:
                raise Refusal(401, "a token is needed: Authorization: Bearer …")
            if path == "events":
                self.send_events()
                return
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            self.send_json(200, self.fake.answer(method, path, query, body, role))
        except Refusal as refusal:
            self.send_json(
                refusal.status,
                {"title": "refused", "status": refusal.status, "detail": str(refusal)},
            )

    def send_events(self) -> None:
        last = self.headers.get("Last-Event-ID")
        self.fake.events_seen.append(last)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

        def send(text: str) -> None:
            self.wfile.write(text.encode())
            self.wfile.flush()

        try:
            self.fake.follow(int(last or self.fake.world.seq - 1), send)
        except OSError:
            pass  # the page has gone

    def send_file(self, path: str) -> None:
        try:
            known = self.headers.get("If-None-Match")
            headers = [(b"if-none-match", known.encode())] if known else []
            found = static.file_at(
                {"path": path, "headers": headers, "method": "GET", "type": "http"}
            )
        except Problem:
            self.send_json(404, {"detail": f"nothing is served at {path}"})
            return
        self.send_response(found.status)
        for name, value in found.headers:
            self.send_header(name.decode(), value.decode())
        self.send_header("Content-Type", found.media.decode())
        self.send_header("Content-Length", str(len(found.body)))
        self.end_headers()
        self.wfile.write(found.body)

    def send_json(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
