"""`fairlead top` against a real server, and against what is none."""

import asyncio
import json
import socket
import sys

from fairlead.cli import main
from fairlead.cli.top_view import lasting, visible
from tests.server.rig import TOKENS, configured, run, served

CODE = "import sys; from fairlead.cli import main; sys.exit(main())"


async def top(*args, **environ):
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CODE, "top", *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONUTF8": "1", "PATH": "", **environ},
    )
    out, err = await asyncio.wait_for(asked.communicate(), 30)
    return asked.returncode, out.decode(), err.decode()


def test_it_shows_every_gate_once_where_there_is_no_terminal(tmp_path):
    async def go():
        async with served(configured(tmp_path)) as client:
            code, out, err = await top(client.url)
            assert code == 0, err
            assert "gateway/default" in out
            assert "flows/checkout" in out
            assert max(map(len, out.splitlines())) <= 80
            code, out, _ = await top(client.url, "--json")
            assert code == 0
            assert {gate["id"] for gate in json.loads(out)["gates"]} >= {"gateway/default"}

    run(go)


def test_it_asks_for_a_token_and_shows_it(tmp_path):
    async def go():
        settings = configured(tmp_path)
        settings["server"] |= {"tokens": TOKENS}
        async with served(settings) as client:
            code, _, err = await top(client.url)
            assert code == 2
            assert "FAIRLEAD_TOKEN" in err
            code, out, _ = await top(client.url, FAIRLEAD_TOKEN="viewer-secret")
            assert code == 0
            assert "gateway/default" in out

    run(go)


def test_what_is_no_server_is_told_in_a_sentence(capsys):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    for url in (address, "ftp://x", "http://", "http://x:y"):
        assert main(["top", url]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "fairlead serve" in said or "is no address" in said


def test_names_reach_the_terminal_as_text_only():
    assert visible("a\x1b[31mb") == "a\\x1b[31mb"
    assert (lasting(None), lasting(0.0421), lasting(3.21)) == ("-", "42 ms", "3.2 s")
