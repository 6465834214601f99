"""The list of models: what the backends that are up serve together, in OpenAI's form.

Where one backend is all there is and no `models:` say otherwise, its own list passes as it is.  Else each backend is
asked with the caller's credentials, and the answers are joined by id.  A backend that does not answer in time is left
out.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import yarl

from fairlead.config import shown
from fairlead.gateway.responses import Failure, send_failure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.gateway.fleet import Fleet
    from fairlead.gateway.settings import Settings
    from fairlead.gateway.upstream import Upstream

    Models = dict[str, dict[str, Any]]

LIST = "/v1/models"
CARDS = LIST + "/"  # of one model each
PATIENCE = 2.0  # seconds for a backend's list
KEPT = 2.0  # seconds that an answer is good for
MOST_KEPT = 16  # answers, of as many callers with credentials of their own
MOST_CONNECTIONS = 32
LARGEST_LIST = 1 << 20  # bytes
CREDENTIALS = frozenset({b"authorization", b"api-key", b"cookie", b"x-api-key"})
WITHHELD = frozenset({401, 403})


class Listed(msgspec.Struct):
    """A list of models as backends write it."""

    data: list[dict[str, Any]]


_decode = msgspec.json.Decoder(Listed).decode


class Catalog:
    """Answers for the list of models and for each model in it; passes everything else on."""

    def __init__(self, app: Any, fleet: Fleet, settings: Settings) -> None:
        self._app = app
        self._fleet = fleet
        self._session: aiohttp.ClientSession | None = None
        self._known: OrderedDict[Any, tuple[float, Models | None]] = OrderedDict()
        self._asking: dict[Any, asyncio.Task[Models | None]] = {}
        self.retune(settings)

    def retune(self, settings: Settings) -> None:
        """Follow a changed configuration."""
        header = settings.tenants.trusted_header
        self._credentials = CREDENTIALS | ({header.lower().encode()} if header else set())
        self._known.clear()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] == "http" and asks_for_models(scope) and self._fleet.lists_differ:
            models = await self._models(scope)
            if models is not None:
                await _answer(models, scope["path"], send)
                return
        await self._app(scope, receive, send)

    async def close(self) -> None:
        """Ask no more."""
        for task in list(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _models(self, scope: Any) -> Models | None:
        """Return what the backends serve together; None if no backend gave a list."""
        up = self._fleet.up
        lines = [line for line in scope["headers"] if line[0] in self._credentials]
        if not up or not all(value.isascii() for _, value in lines):
            return None
        key = (tuple(lines), tuple((one.url, one.models) for one in up))
        known = self._known.get(key)
        if known is not None and known[0] > asyncio.get_running_loop().time():
            return known[1]
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._collect(key, lines, up))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)  # others wait for it too

    async def _collect(
        self, key: Any, lines: list[tuple[bytes, bytes]], up: list[Upstream]
    ) -> Models | None:
        headers = [(name.decode(), value.decode()) for name, value in lines]
        found = await asyncio.gather(*(self._ask(one, headers) for one in up))
        models = None if all(one is None for one in found) else _joined(found)
        self._known[key] = (asyncio.get_running_loop().time() + KEPT, models)
        if len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return models

    async def _ask(self, upstream: Upstream, headers: list[tuple[str, str]]) -> Models | None:
        """Return the models of one backend; None if it is to be left out."""
        try:
            async with asyncio.timeout(PATIENCE):
                theirs = await self._get(upstream.url + LIST, headers)
        except (aiohttp.ClientError, OSError, ValueError):
            return None
        if upstream.models is None or theirs is None:
            return theirs or None  # where no backend has a list, a backend's own answer passes
        # What the configuration lists is what requests may name, whatever the backend calls it.
        return {
            name: theirs.get(name)
            or {"id": name, "object": "model", "created": 0, "owned_by": "fairlead"}
            for name in sorted(upstream.models)
        }

    async def _get(self, url: str, headers: list[tuple[str, str]]) -> Models | None:
        """Return the models that a backend lists, none if it has no list; None if it will not say."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=False,
            )
        async with self._session.get(
            yarl.URL(url, encoded=True), headers=headers, allow_redirects=False
        ) as response:
            body = bytearray()
            if response.status == 200:
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > LARGEST_LIST:
                        break
            if not response.content.at_eof():
                response.close()
        if response.status in WITHHELD:
            return None
        try:
            data = _decode(body).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return {card["id"]: card for card in data if isinstance(card.get("id"), str)}


def asks_for_models(scope: Any) -> bool:
    """Return whether a request reads the list of models or an entry of it."""
    path: str = scope["path"]
    return (path == LIST or path.startswith(CARDS)) and scope["method"] in ("GET", "HEAD")


def _joined(found: Iterable[Models | None]) -> Models | None:
    """Join lists by id; the first to list a model describes it."""
    models: Models = {}
    for one in found:
        for name, card in (one or {}).items():
            models.setdefault(name, card)
    return models


async def _answer(models: Models, path: str, send: Any) -> None:
    if path in (LIST, CARDS):
        document: Any = {"object": "list", "data": list(models.values())}
    else:
        name = path.removeprefix(CARDS)
        document = models.get(name)
        if document is None:
            text = f"no upstream serves the model {shown(name)}"
            await send_failure(send, Failure(404, "model_not_found", text), path)
            return
    body = msgspec.json.encode(document)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
