"""`fairlead serve` as a process: from a file, or from nothing, to the end by a signal."""

from __future__ import annotations

import logging
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from fairlead.config import shown
from fairlead.documents.watching import Watch
from fairlead.errors import ConfigError, FairleadError
from fairlead.server import demo
from fairlead.server.loading import Loaded, load, load_content
from fairlead.server.settings import ServerSettings
from fairlead.serving.logs import set_up_logging
from fairlead.serving.process import run as run_service
from fairlead.serving.process import say

if TYPE_CHECKING:
    from fairlead.server.service import Server

log = logging.getLogger("fairlead.server")

USUAL = "fairlead.yaml"  # used if it is there and no other is named
EMBEDDED = "embedded defaults"


class Prepared(NamedTuple):
    """A configuration, and where it came from."""

    loaded: Loaded
    path: str | None
    text: str
    lines: tuple[str, ...]  # to tell when it starts


def follow(server: Server, path: str, loaded: Loaded) -> Watch[Loaded]:
    """Have a server follow its configuration file, and the files that are named in it."""
    watch = Watch(
        path,
        load_content,
        server.retune,
        losses=server.losses,
        since=loaded,
        refused=server.count_refused_reload,
        on_purpose="restart, or PUT /api/v1/config with allow_loss, to lose it on purpose",
    )
    server.on_retuned = watch.know
    return watch


def prepared(config: str | None, *, listen: str | None = None, shows: bool = True) -> Prepared:
    """Read the configuration named, or ./fairlead.yaml, or make the embedded one."""
    if config is None and Path(USUAL).exists():
        config = USUAL
    lines: tuple[str, ...] = ()
    text = ""
    if config is None:
        folder = demo.folder_for_state()
        ports = demo.free_ports()
        if listen is not None:
            ports["server"] = listen
        text = _yaml(demo.settings(folder, ports, shown=shows))
        loaded = load_content(text.encode(), EMBEDDED)
        lines = (f"fairlead: no configuration given; embedded defaults, state in {folder}",)
    else:
        loaded = load(config)
        if not shows:
            loaded = loaded._replace(settings=loaded.settings.model_copy(update={"demo": None}))
        if listen is not None and not loaded.problems:
            loaded = _listening(loaded, listen)
    return Prepared(loaded, config, text, lines)


def _listening(loaded: Loaded, listen: str) -> Loaded:
    given = loaded.settings.server.model_dump() | {"listen": listen}
    try:
        server = ServerSettings.model_validate(given)
    except ValidationError as error:
        said = str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"--listen {shown(listen)}: {said}") from None
    return loaded._replace(settings=loaded.settings.model_copy(update={"server": server}))


def _yaml(settings: dict[str, Any]) -> str:
    from ruamel.yaml import YAML

    writer = YAML()
    writer.indent(mapping=2, sequence=4, offset=2)
    text = StringIO()
    writer.dump(settings, text)
    return text.getvalue()


def check(config: str | None, *, listen: str | None = None) -> int:
    """Say whether a configuration is valid, and everything that is wrong with it."""
    ready = prepared(config, listen=listen)
    say(*ready.loaded.lines, *(f"warning: {one}" for one in ready.loaded.warnings))
    if not ready.loaded.problems:
        say(f"{ready.loaded.source}: valid")
    return 2 if ready.loaded.problems else 0


def run(config: str | None, *, listen: str | None = None, shows: bool = True) -> int:
    """Serve until a signal ends it; return the exit code."""
    try:
        ready = prepared(config, listen=listen, shows=shows)
    except ConfigError as error:
        say(f"fairlead serve: {error}")
        return 2
    loaded = ready.loaded
    if loaded.problems:
        say(*loaded.lines)
        return 2
    settings = loaded.settings.server
    in_json = settings.logs == "json"
    tell, complain = (log.info, log.error) if in_json else (say, say)
    # Whether a line is written is up to the gateway's settings, which a reload may change.
    with set_up_logging(json=in_json, access=loaded.gateway is not None):
        for line in ready.lines:
            tell(line)
        try:
            return run_service(
                lambda: _server(ready),
                name="fairlead serve",
                following=lambda server: _following(server, ready),
                tell=tell,
                complain=complain,
            )
        except FairleadError as error:
            complain(f"fairlead serve: {' '.join(str(error).split())}")
            return 2 if isinstance(error, ConfigError) else 1


def _server(ready: Prepared) -> Server:
    from fairlead.server.service import Server

    upstream = demo.upstream_for(ready.loaded)
    try:
        return Server(ready.loaded, path=ready.path, text=ready.text, upstream=upstream)
    except BaseException:
        if upstream is not None:
            upstream.close()
        raise


def _following(server: Server, ready: Prepared) -> Watch[Loaded] | None:
    return None if ready.path is None else follow(server, ready.path, ready.loaded)
