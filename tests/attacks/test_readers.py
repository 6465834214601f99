"""Files that are cut, twisted or absurd, against everything that reads one: each is read, or refused in a sentence.

Tried: mutations of configurations, scenarios, DAGs and YAML tricks by the readers of YAML and JSON; mutations of
recordings and traces of each kind; and scenarios of the simulator with numbers that no machine could simulate.
"""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.capacities import Slots
from fairlead.core import Outcome, Ticket
from fairlead.core.trace import Recorder
from fairlead.documents.json_reading import read_json
from fairlead.documents.reading import tree_of_yaml
from fairlead.errors import BadFile
from fairlead.jobs.files import source_of
from fairlead.policies import FIFO
from fairlead.server.loading import load_content
from fairlead.sim import read_policy, read_scenario, simulate
from tests.sizes import times

CONFIGURATION = b"""server:
  listen: 127.0.0.1:7310
  tokens:
    - {name: v, role: viewer, sha256: c36386a8151243550780a85eef719533bdb593e5255703bcb526f845d45297e7}
gateway:
  listen: 127.0.0.1:7311
  admin: {listen: 127.0.0.1:7312}
  upstreams: [{url: "http://127.0.0.1:7110", capacity: 8}]
  tenants: {trusted_header: x-tenant-id}
  priority_scheduler:
    enabled: true
    classes: {interactive: {reserved_floor: 0}, system: {reserved_floor: 0}}
flows:
  http: 127.0.0.1:7313
  control_points:
    checkout: {concurrency: {max_concurrency: 10}}
jobs: {app: app_tasks:jobs}
"""
SCENARIO = b"seconds: 10\narrivals: [{kind: poisson, class: default, rate: 1, service: 1s}]\n"
DAG = b'{"name":"a","jobs":[{"name":"x","task":"t","args":[1,{"$result":"y"}],"after":["y"]}]}'
TRICKS = (
    b'a: &x [1,*x]\nb: !!python/object/apply:os.system ["id"]\n? [k]\n: v\n<<: *x\n%TAG ! x\n...\n'
)
TEXTS = (CONFIGURATION, SCENARIO, DAG, TRICKS)
TOKENS = (
    *(b"&a", b"*a", b"!!", b"{", b"}", b"[", b"]", b": ", b"- ", b"\n", b"\t", b"|", b">", b'"'),
    *(b"'", b"\\u", b"\xff", b"\xed\xa0\x80", b"%YAML 9.9\n", b"---\n", b"?", b"1e999", b"0x"),
    *(b"\x00", b"\xe2\x80\xa8", b"<<", b"#", b",", b"-1", b"nan", b"null", b"9" * 400),
)
READERS: dict[str, Callable[[bytes], object]] = {
    "configuration": lambda text: load_content(text, "x.yaml", named=()),
    "YAML": tree_of_yaml,
    "JSON": read_json,
    "DAG": source_of,
}
RECORDED = {
    "llm.csv": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    b"2023-11-16 18:15:50.9951690,396,109\n",
    "images.csv": b"gmt_create,predict_type,predict_status,exec_time_seconds,groupId,num_lora\n"
    b"2024-11-15 16:57:50,TXT_2_IMG,SUCCEED,32.0,G0000,0\n",
    "ours.jsonl": b'{"t": 100.0, "class": "bulk", "tenant": "acme", "service_ms": 1500, "id": "a"}\n'
    b'{"t": 101.5, "class": "bulk", "tokens": 7, "deadline": 111.5, "deps": ["a"]}\n',
    "graph.json": b'{"workflow": {"specification": {"tasks": [{"id": "a", "parents": []}, {"id": "b", '
    b'"parents": ["a"]}]}, "execution": {"tasks": [{"id": "a", "runtimeInSeconds": 1}, '
    b'{"id": "b", "runtimeInSeconds": 2}]}}}',
}
TRIED = {
    "mutated YAML, JSON and DAG files": 60_000,
    "mutated recordings and traces": 22_500,
    "absurd scenarios": 14,
}
MOST_CPU = 5.0  # seconds for a text of less than 2 kB; the worst seen is 0.3


def mutated(text: bytes, chance: random.Random) -> bytes:
    """Put tokens in, cut bytes out, change some and repeat others."""
    found = bytearray(text)
    for _ in range(chance.randint(1, 7)):
        at, deed = chance.randrange(len(found) + 1), chance.random()
        if deed < 0.4:
            found[at:at] = chance.choice(TOKENS)
        elif deed < 0.6:
            del found[at : at + chance.randint(1, 12)]
        elif deed < 0.8:
            found[at : at + 1] = bytes([chance.randrange(256)])
        else:
            start = chance.randrange(len(found) + 1)
            found[at:at] = found[start : start + chance.randrange(60)]
    return bytes(found)


def judged(reader: Callable[[bytes], object], text: bytes) -> bool:
    """Return whether a text is read; raise what is neither that nor a refusal."""
    began = time.process_time()
    try:
        reader(text)
    except BadFile:
        return False
    finally:
        assert time.process_time() - began < MOST_CPU
    return True


@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_or_refused(name: str) -> None:
    chance = random.Random(f"18/{name}")
    for _ in range(times(TRIED["mutated YAML, JSON and DAG files"] // len(READERS))):
        text = mutated(chance.choice(TEXTS), chance)
        try:
            judged(READERS[name], text)
        except Exception as error:
            raise AssertionError(f"{text!r}") from error


def verbs() -> bytes:
    """Write down a life of tickets as a Recorder does."""
    gate = Recorder(FIFO(), Slots(2))
    tickets = [Ticket(f"t{number}", tenant="acme") for number in range(4)]
    for number, ticket in enumerate(tickets):
        gate.offer(ticket, 100.0 + number)
    for ticket in tickets:
        gate.finish(ticket, 110.0, Outcome.OK)
    return "\n".join(json.dumps(entry) for entry in gate.entries).encode()


def source(name: str, folder: Path) -> dict[str, Any]:
    """Describe a file as a source of arrivals."""
    kind = {"kind": "trace", "file": str(folder / name)}
    if name == "verbs.jsonl":
        return kind | {"format": "recorder", "recorded_under": str(folder / "was.yaml")}
    if name == "graph.json":
        return {"kind": "dags", "files": [str(folder / name)]}
    return kind


@pytest.mark.parametrize("name", [*RECORDED, "verbs.jsonl"])
def test_a_mutated_recording_is_read_or_refused(name: str, tmp_path: Path) -> None:
    chance, text = random.Random(f"18/{name}"), RECORDED.get(name) or verbs()
    (tmp_path / "was.yaml").write_text("policy: fifo\ncapacity: {slots: 2}\n")
    asked = {"arrivals": [source(name, tmp_path)], "seconds": 10}

    def read(content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        arrivals = read_scenario(asked).arrivals(0)
        assert all(one.at >= 0 and one.service >= 0 for one in arrivals)

    assert judged(read, text), "it is read as it stands"
    for _ in range(times(TRIED["mutated recordings and traces"] // (len(RECORDED) + 1))):
        content = mutated(text, chance)
        try:
            judged(read, content)
        except Exception as error:
            raise AssertionError(f"{content!r}") from error


def poisson(rate: str = "1", service: str = "1s") -> str:
    return f"arrivals: [{{kind: poisson, class: default, rate: {rate}, service: {service}}}]"


def closed(more: str) -> str:
    return f"seconds: 10\narrivals: [{{kind: closed, class: default, {more}}}]"


ABSURD = {  # what is said; of none, it is simulated
    f"seconds: 10\n{poisson(rate='1e12')}": "must be less than",
    f"seconds: 1000000\n{poisson(rate='1000000')}": "a simulation is of",
    f"seconds: 1e300\n{poisson()}": "must be a duration",
    f"seconds: .nan\n{poisson()}": "must be a duration",
    f"seconds: 10\n{poisson(rate='.inf')}": "must be a finite number",
    f"seconds: -1\n{poisson(rate='-5')}": "must be greater than 0",
    "seconds: 10\narrivals: [{kind: burst, class: default, size: 1000000000, at: 1s, every: 1ms, "
    "over: 1s, service: 1s}]": "must be less than",
    closed("clients: 1000000000, think: 0s, service: 0s"): "must be less than",
    closed("clients: 1, think: 0s, service: 0s"): "",
    closed("clients: 1000, think: 1us, service: 1us"): "must be a duration",
    f"seconds: 10\n{poisson(service='{lognormal: {median: 1e-300, p95: 1e300}}')}": "duration",
    "seconds: 10\narrivals: [{kind: recording, file: /etc/passwd}]": "kind must be one of",
    "seconds: 10\narrivals: [{kind: trace, file: /dev/zero}]": "is no file",
    "\x00\x01\x1b[31m": "1:1",
}
assert len(ABSURD) == TRIED["absurd scenarios"]


@pytest.mark.parametrize(("text", "said"), ABSURD.items(), ids=range(len(ABSURD)))
def test_an_absurd_scenario_is_refused_before_it_is_simulated(
    text: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    if text == closed("clients: 1, think: 0s, service: 0s"):
        policy = read_policy({"policy": "fifo", "capacity": {"slots": 1}})
        assert simulate(read_scenario(path), policy, 0).tickets
    else:
        with pytest.raises(BadFile, match=said):
            read_scenario(path)


def test_an_exception_of_a_reader_is_no_refusal() -> None:
    def broken(text: bytes) -> None:
        raise IndexError("of a reader")

    with pytest.raises(IndexError):
        judged(broken, b"a: b")
