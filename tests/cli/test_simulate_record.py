"""`fairlead record` against servers that answer, refuse, break off, or are something else; over real sockets."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from fairlead.cli import main

ROW = {"t": 0.5, "class": "bulk", "tenant": "a", "service_ms": 20.0}
GATE = "gateway/default"


class Handler(BaseHTTPRequestHandler):
    """A server with one gate, which wants a token if it has one."""

    token: str | None = None
    lines: ClassVar[list[str]] = [json.dumps(ROW)] * 3
    asked: ClassVar[list[tuple[str, str]]] = []
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        parts = urlsplit(self.path)
        self.asked.append((parts.path, parts.query))
        if self.token and self.headers["Authorization"] != f"Bearer {self.token}":
            self.say(401, json.dumps({"title": "Unauthorized", "detail": "no such token"}).encode())
        elif parts.path == "/api/v1/overview":
            self.say(200, json.dumps({"doors": [{"gates": [GATE, "jobs/leader"]}]}).encode())
        elif parts.path == "/api/v1/gates/gateway%2Fdefault/recording":
            assert float(parse_qs(parts.query)["minutes"][0]) > 0
            self.say(200, "".join(line + "\n" for line in self.lines).encode())
        elif parts.path == "/api/v1/gates/broken/recording":
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(json.dumps(ROW).encode() + b"\n")
            self.close_connection = True
        elif parts.path == "/api/v1/gates/chunks/recording":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            line = json.dumps(ROW).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.close_connection = True
        elif parts.path == "/api/v1/gates/moved/recording":
            self.send_response(302)
            self.send_header("Location", "http://elsewhere.example/")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif parts.path == "/api/v1/gates/busy/recording":
            self.say(503, b"<html>sorry</html>")
        else:
            self.say(404, b'{"title": "Not Found"}')

    def say(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    handler = type("Own", (Handler,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        listening.handler = handler  # type: ignore[attr-defined]
        listening.url = f"http://127.0.0.1:{listening.server_address[1]}"  # type: ignore[attr-defined]
        yield listening
        listening.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRLEAD_TOKEN", raising=False)
    # A proxy would be told the token.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    return tmp_path


def record(url, gate=GATE, *more):
    return main(["record", url, "--gate", gate, "--out", "incident.jsonl", *more])


def test_a_recording_is_written(server, folder, capsys):
    assert record(server.url + "/", GATE, "--minutes", "5") == 0
    assert capsys.readouterr().out == f"3 tickets of {GATE} are in incident.jsonl.\n"
    text = (folder / "incident.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == [ROW] * 3
    assert server.handler.asked == [("/api/v1/gates/gateway%2Fdefault/recording", "minutes=5")]
    assert [path.name for path in folder.iterdir()] == ["incident.jsonl"]


def test_a_server_may_be_named_as_for_top_by_its_host_and_port(server, folder, capsys):
    assert record(server.url.removeprefix("http://")) == 0
    assert "3 tickets" in capsys.readouterr().out


def test_nothing_recorded_is_said(server, folder, capsys):
    server.handler.lines = []
    assert record(server.url) == 0
    out, err = capsys.readouterr()
    assert out.startswith("0 tickets")
    assert "Nothing passed" in err


def test_the_token_is_shown_from_the_option_or_the_environment(server, folder, monkeypatch, capsys):
    server.handler.token = "let-me-in"
    assert record(server.url) == 1
    err = capsys.readouterr().err
    assert "wants a token (no such token); give one with --token or FAIRLEAD_TOKEN" in err
    assert record(server.url, GATE, "--token", "wrong") == 1
    err = capsys.readouterr().err
    assert "does not take this token" in err
    assert "wrong" not in err
    assert record(server.url, GATE, "--token", "let-me-in") == 0
    monkeypatch.setenv("FAIRLEAD_TOKEN", "let-me-in")
    assert record(server.url) == 0


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ("gateway/other", "knows no gate 'gateway/other'; it has gateway/default, jobs/leader"),
        ("broken", "broke off"),
        ("chunks", "broke off"),
        ("moved", "sends elsewhere"),
        ("busy", "answered 503; look at its log"),
    ],
)
def test_what_is_no_recording_is_explained_and_leaves_no_file(server, folder, capsys, gate, says):
    assert record(server.url, gate) == 1
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("line", ["<html>", "[1]", "3", '{"t": ', "[" * 100_000])
def test_another_kind_of_server_is_recognised(server, folder, capsys, line):
    server.handler.lines = [json.dumps(ROW), line]
    (folder / "incident.jsonl").write_text("yesterday's")
    assert record(server.url) == 1
    assert "line 2" in capsys.readouterr().err
    assert (folder / "incident.jsonl").read_text() == "yesterday's"


def test_nobody_there_is_said(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert record(f"http://127.0.0.1:{port}") == 1
    err = capsys.readouterr().err
    assert (
        f"nothing listens at http://127.0.0.1:{port}; start a server there with fairlead serve"
        in err
    )


def test_who_does_not_speak_http_or_tls_is_said(folder, capsys):
    def answer(listening, said):
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(said)

    for scheme, says in (("http", "does not speak HTTP"), ("https", "is it https at all?")):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=answer, args=(listening, b"SSH-2.0-OpenSSH_9.2\r\n"))
            thread.start()
            assert record(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}") == 1
            thread.join()
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere", "--out", "x.jsonl"], "is not the URL of a server"),
        (["me:secret@x:80", "--out", "x.jsonl"], "use --token"),
        (["ftp://x", "--out", "x.jsonl"], "is not the URL of a server"),
        (["http://x:port", "--out", "x.jsonl"], "is not a URL"),
        (["http://me:secret@x", "--out", "x.jsonl"], "use --token"),
        (["http://127.0.0.1:1", "--out", "no/where.jsonl"], "there is no folder"),
        (["http://127.0.0.1:1", "--out", "."], "it is a folder"),
        (["http://127.0.0.1:1", "--out", "x.jsonl", "--minutes", "0"], "at most 15; got 0"),
        (["http://127.0.0.1:1", "--out", "x.jsonl", "--minutes", "nan"], "at most 15; got nan"),
        (["http://127.0.0.1:1", "--out", "x.jsonl", "--minutes", "16"], "at most 15; got 16"),
        (["http://127.0.0.1:1", "--out", "x.jsonl", "--token", "a\nb"], "the token has characters"),
        (["http://127.0.0.1:1"], "--out"),
    ],
)
def test_a_command_that_cannot_be_carried_out_is_told(folder, capsys, arguments, says):
    assert main(["record", "--gate", GATE, *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert says in err
    assert "secret" not in err
    assert list(folder.iterdir()) == []
