"""The streams suite of the benchmarks: its cases are there, its cheap table runs, its figures can be told."""

from benchmarks import harness, streams, streams_figures
from benchmarks.figures import Figures, short_table
from benchmarks.report import plain
from benchmarks.sizes import Sizes
from benchmarks.streams_cluster import Cluster
from benchmarks.streams_meter import Meter
from benchmarks.streams_run import CASES, measured
from benchmarks.streams_zoo import ZOO

TINY = Sizes(tickets=40, records=2000, storm=0.1)


def test_every_case_can_be_run_by_name():
    assert set(streams.PLANS.values()) - {"quixstreams"} <= set(CASES)
    assert {f"zoo-{name}" for name in ZOO} <= set(CASES)


def test_what_scheduling_costs_is_measured_and_told():
    result = harness.run(streams.scheduling(TINY), 1)
    assert result.errors == {}
    assert all(verdict.value for verdict in result.verdicts())
    told = short_table(streams_figures.rows(Figures([plain(result)])))
    assert "scheduling of a batch, built-in" in told


def test_a_drain_is_measured_in_a_process_of_its_own():
    with Cluster() as cluster:
        figures = measured("loop", cluster.servers, cluster.filled(4, 4000), 4000)
    assert figures["wall"] > 0 < figures["cpu"]


def test_peers_that_are_not_installed_are_left_out_with_a_note(monkeypatch):
    monkeypatch.setattr(streams, "find_spec", lambda name: None)
    monkeypatch.setattr(streams, "quix_is_here", lambda: False)
    first, second = streams.draining(TINY, "nowhere", "topic")
    assert list(first.cases) == [
        streams.RAW,
        streams.OURS,
        streams.THREADS,
        streams.FAIR,
        streams.ONE,
    ]
    assert list(second.cases) == list(first.cases)
    assert "aiokafka is not installed: left out." in first.notes


def test_the_clock_starts_with_the_first_records_which_do_not_count():
    meter = Meter(10)
    assert not meter.hit(5)
    assert meter.hit(5)
    assert set(meter.figures()) == {"wall", "cpu"}
