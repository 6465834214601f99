"""Each program under examples/ runs as a person would run it, and says what its page says it says."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(name: str, *options: str) -> str:
    """Run an example to its end, with warnings as errors; return what it printed."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_listed_and_tested():
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    listed = set(re.findall(r"\]\((\w+)\.py\)", (EXAMPLES / "README.md").read_text("utf-8")))
    tested = set(re.findall(r'run\("(\w+)"', Path(__file__).read_text("utf-8")))
    assert found == listed == tested


def test_chats_do_not_wait_behind_batches():
    lines = run("llm_gateway", "--seconds", "1").splitlines()
    medians = {
        (match[1].strip(), match[2]): float(match[3])
        for match in (re.match(r"(.{17}) (\w+) +first byte p50 +([\d.]+) s", x) for x in lines)
        if match
    }
    assert len(medians) == 4
    # Not a matter of speed: directly, chats stand behind all the batches that came before them.
    assert medians["through Fairlead", "interactive"] < medians["directly", "interactive"], medians
    assert "200: 10}" in lines[0]
    assert "200: 10" in lines[2]


def test_the_api_never_refuses_and_users_come_first():
    told = run("rate_limited_client", "--seconds", "1.5")
    match = re.search(r"\{200: (\d+)\}; done for users (\d+), for the backfill (\d+)", told)
    assert match, told
    total, users, backfill = map(int, match.groups())
    assert total == users + backfill
    assert 2.0 < users / backfill < 4.5


def test_the_late_document_is_filed_first(tmp_path):
    database = f"sqlite:///{tmp_path / 'documents.db'}"
    told = run("document_pipeline", "--documents", "3", "--db", database)
    assert told.count("completed ") == 4
    assert "in this order: urgent document," in told
    # Once more on the same file: the keys are known, so nothing is done twice.
    again = run("document_pipeline", "--documents", "3", "--db", database)
    assert again.count("completed ") == 4
    assert again.rstrip().endswith("filed in this order:")


def test_payments_overtake_reports():
    told = run("kafka_priorities", "--reports", "300", "--payments", "50")
    places = dict(re.findall(r"(\w+) +\d+ records, all committed; mean place ([\d.]+)", told))
    assert float(places["payments"]) < float(places["reports"])


def test_two_doors_never_use_more_than_their_one_capacity():
    told = run("shared_capacity", "--records", "1000", "--calls", "20")
    assert "most at once: 4 of 4" in told
    assert "'calls': 20" in told
