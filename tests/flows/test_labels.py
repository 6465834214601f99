"""What labels say: workloads by matchers, tokens, priorities, users; and labels that cannot be used."""

import asyncio
import random
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead.flows import workloads
from fairlead.flows.load import LoadControl
from fairlead.flows.matchers import compiled
from fairlead.flows.settings import Matcher, Scheduler
from fairlead.flows.workloads import Resolver, canonical
from tests.flows.door import (
    backlog,
    balanced,
    concurrency,
    level,
    point_of,
    quota,
    run,
    scheduler,
    ticks,
    until,
)

# Matcher, labels, whether it matches.
TRUTH: list[tuple[dict[str, Any], dict[str, str], bool]] = [
    ({}, {}, True),
    ({}, {"a": "1"}, True),
    ({"match_labels": {}}, {}, True),
    ({"match_labels": {"a": "1"}}, {"a": "1", "b": "2"}, True),
    ({"match_labels": {"a": "1"}}, {"a": "2"}, False),
    ({"match_labels": {"a": "1"}}, {"a": "1 "}, False),
    ({"match_labels": {"a": "1"}}, {}, False),
    ({"match_labels": {"a": ""}}, {}, False),
    ({"match_labels": {"a": ""}}, {"a": ""}, True),
    ({"match_labels": {"a": "1", "b": "2"}}, {"a": "1"}, False),
    ({"match_labels": {"a": "1", "b": "2"}}, {"a": "1", "b": "2"}, True),
    ({"in": {"a": ["1", "2"]}}, {"a": "2"}, True),
    ({"in": {"a": ["1", "2"]}}, {"a": "3"}, False),
    ({"in": {"a": ["1", "2"]}}, {}, False),
    ({"in": {"a": []}}, {"a": "1"}, False),
    ({"in": {"a": ["1.*"]}}, {"a": "12"}, False),
    ({"not_in": {"a": ["1", "2"]}}, {"a": "2"}, False),
    ({"not_in": {"a": ["1", "2"]}}, {"a": "3"}, True),
    ({"not_in": {"a": ["1", "2"]}}, {}, True),
    ({"not_in": {"a": []}}, {"a": "1"}, True),
    ({"exists": ["a"]}, {"a": ""}, True),
    ({"exists": ["a"]}, {"b": "1"}, False),
    ({"exists": ["a", "b"]}, {"b": "1"}, False),
    ({"exists": []}, {}, True),
    ({"regex": {"a": "b+"}}, {"a": "abbc"}, True),
    ({"regex": {"a": "^b+$"}}, {"a": "abbc"}, False),
    ({"regex": {"a": ".*"}}, {}, False),
    ({"regex": {"a": ""}}, {"a": "x"}, True),
    ({"regex": {"a": "(?i)BOT|crawler"}}, {"a": "a robot"}, True),
    ({"regex": {"a": "^5$"}}, {"a": "5\n"}, False),
    # Each of these takes a backtracking engine longer than the age of the world.
    ({"regex": {"a": "^(a+)+$"}}, {"a": "a" * 50_000 + "!"}, False),
    ({"regex": {"a": "^([a-z]+-?)+$"}}, {"a": "a" * 50_000 + "!"}, False),
    ({"regex": {"a": "(x|x)*y"}}, {"a": "x" * 50_000}, False),
    ({"all": []}, {}, True),
    ({"all": [{"exists": ["a"]}, {"exists": ["b"]}]}, {"a": "", "b": ""}, True),
    ({"all": [{"exists": ["a"]}, {"exists": ["b"]}]}, {"a": ""}, False),
    ({"any": []}, {}, False),
    ({"any": []}, {"a": "1"}, False),
    ({"any": [{"exists": ["a"]}, {"exists": ["b"]}]}, {"b": ""}, True),
    ({"any": [{"exists": ["a"]}, {"exists": ["b"]}]}, {"c": ""}, False),
    ({"any": [{}]}, {}, True),
    ({"not": {}}, {}, False),
    ({"not": {"exists": ["a"]}}, {}, True),
    ({"not": {"exists": ["a"]}}, {"a": ""}, False),
    ({"not": {"match_labels": {"a": "1"}}}, {}, True),
    ({"not": {"regex": {"a": "x"}}}, {}, True),
    ({"not": {"not_in": {"a": ["1"]}}}, {}, False),
    ({"not": {"not": {"exists": ["a"]}}}, {"a": ""}, True),
    ({"not": {"any": []}}, {}, True),
    ({"match_labels": {"a": "1"}, "not_in": {"b": ["2"]}}, {"a": "1"}, True),
    ({"match_labels": {"a": "1"}, "not_in": {"b": ["2"]}}, {"a": "1", "b": "2"}, False),
    ({"exists": ["a"], "any": [{"in": {"b": ["1"]}}]}, {"a": ""}, False),
    ({"all": [{"any": [{"exists": ["a"]}]}], "not": {"exists": ["b"]}}, {"a": ""}, True),
    ({"all": [{"any": [{"exists": ["a"]}]}], "not": {"exists": ["b"]}}, {"a": "", "b": ""}, False),
]


@pytest.mark.parametrize(("matcher", "labels", "matches"), TRUTH, ids=str)
def test_scenario_29_the_truth_table(matcher, labels, matches):
    assert compiled(Matcher.model_validate(matcher))(labels) is matches
    said = {"workloads": [{"name": "it"} | matcher]}
    assert resolved(said, labels).workload[0] == ("it" if matches else "default")


def resolved(said: dict[str, Any], labels: dict[str, str]) -> Any:
    """The flow that such labels make, accepted."""

    async def main():
        async with scheduler(scheduler=said).flow("p", labels) as flow:
            assert flow.should_run()
            return flow

    return run(main())


WORKLOADS = {
    "workloads": [
        {"name": "paid", "match_labels": {"tier": "paid"}, "priority": 3, "tokens": 5},
        {"exists": ["tier"], "priority": 2, "tokens": 0},
        {"name": "late", "match_labels": {"tier": "paid", "x": "y"}, "priority": 9},
    ],
    "default_workload": {"priority": 7, "tokens": 4},
}


@pytest.mark.parametrize(
    ("labels", "workload", "tokens"),
    [
        ({"tier": "paid"}, ("paid", 3), 5),
        ({"tier": "paid", "x": "y"}, ("paid", 3), 5),  # the first that matches, not the best
        ({"tier": "free"}, ("1", 2), 1),  # named by its index; tokens 0 are as good as none given
        ({}, ("default", 7), 4),
        ({"Tier": "paid"}, ("default", 7), 4),
    ],
)
def test_scenario_29_the_first_that_matches_or_the_default(labels, workload, tokens):
    flow = resolved(WORKLOADS, labels)
    assert (flow.workload, flow.tokens) == (workload, tokens)


def test_a_default_of_no_tokens_costs_one():
    assert resolved({"default_workload": {"tokens": 0}}, {}).tokens == 1


def test_scenario_30_the_workload_label_changes_the_name_and_nothing_else():
    said = WORKLOADS | {"workload_label_key": "w"}
    flow = resolved(said, {"tier": "paid", "w": "mine"})
    assert (flow.workload, flow.tokens) == (("mine", 3), 5)
    assert resolved(said, {"tier": "paid"}).workload == ("paid", 3)
    assert resolved(said, {"tier": "paid", "w": ""}).workload == ("paid", 3)


class TestTokens:
    """Scenario 31: label, then estimate, then workload, then 1."""

    def test_without_an_estimate(self):
        said = WORKLOADS | {"tokens_label_key": "tokens"}
        assert resolved(said, {"tier": "paid", "tokens": "2.5"}).tokens == 2.5
        assert resolved(said, {"tier": "paid"}).tokens == 5
        assert resolved({"tokens_label_key": "tokens"}, {}).tokens == 1

    def test_with_an_estimate(self):
        """Milliseconds of work, by workload, once some work has ended."""

        async def main():
            said = WORKLOADS | {
                "tokens_label_key": "tokens",
                "workload_latency_based_tokens": True,
            }
            flows = scheduler(scheduler=said)
            for seconds in (0.1, 0.3):
                async with flows.flow("p", {"tier": "paid"}):
                    await asyncio.sleep(seconds)
            await until(5.0)  # estimates move every five seconds
            told = [
                await flows.start_flow("p", labels)
                for labels in ({"tier": "paid"}, {"tier": "paid", "tokens": "7"}, {"tier": "free"})
            ]
            return [flow.tokens for flow in told]

        assert run(main()) == pytest.approx([200, 7, 1])

    def test_an_estimate_is_of_no_use_where_it_is_not_wanted(self):
        async def main():
            flows = scheduler(scheduler=WORKLOADS)
            async with flows.flow("p", {"tier": "paid"}):
                await asyncio.sleep(1)
            return (await flows.start_flow("p", {"tier": "paid"})).tokens

        assert run(main()) == 5


GOOD = ["1e3", "0.5", " 4 ", "+2", "1e-9", "1e15", "16"]
BAD = [
    "-5",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "Infinity",
    "abc",
    "",
    " ",
    "1e300",
    "1e16",
    "1,5",
    "0x10",
]
BAD += ["4" * 10_000, "1\u200b", "\u202e1", "\x00", "\ud800", "1 2", "None", "-0.0001"]


@pytest.mark.parametrize("value", [*BAD, "0", "-0", "0.0"], ids=lambda value: repr(value)[:20])
def test_scenario_28_bad_tokens(value):
    """The workload's value is used, it is counted, and said in the decision."""

    async def main():
        flows = scheduler(
            quota=quota(100, 1e-6), scheduler=WORKLOADS | {"tokens_label_key": "tokens"}
        )
        async with flows.flow("p", {"tier": "paid", "tokens": value}) as flow:
            assert flow.should_run()
            assert (flow.tokens, flow.ignored) == (5, ("tokens",))
        assert point_of(flows).resolver.bad_labels == {"tokens": 1}
        assert level(flows) == pytest.approx(95)
        balanced(flows)

    run(main())


@pytest.mark.parametrize("value", BAD, ids=lambda value: repr(value)[:20])
def test_scenario_28_bad_priorities(value):
    flow = resolved(
        WORKLOADS | {"priority_label_key": "priority"}, {"tier": "paid", "priority": value}
    )
    assert (flow.workload, flow.ignored) == (("paid", 3), ("priority",))


@pytest.mark.parametrize("value", GOOD)
def test_good_numbers(value):
    said = {"priority_label_key": "number", "tokens_label_key": "number"}
    flow = resolved(said, {"number": value})
    assert (flow.tokens, flow.workload) == (float(value), ("default", float(value)))
    assert flow.ignored == ()


def test_a_priority_of_nothing_is_a_priority():
    flow = resolved({"priority_label_key": "priority"}, {"priority": "0"})
    assert (flow.workload, flow.rank, flow.ignored) == (("default", 0.0), 0, ())


def test_two_bad_labels_are_both_told():
    said = {"priority_label_key": "priority", "tokens_label_key": "tokens"}
    flow = resolved(said, {"priority": "x", "tokens": "y"})
    assert flow.ignored == ("tokens", "priority")


def test_a_label_that_nothing_reads_is_nobodys_business():
    assert resolved({}, {"tokens": "nan", "priority": "-1", "workload": "x" * 10_000}).ignored == ()


class TestKeys:
    """Users, tenants and limit keys: equal after NFC, of bounded length."""

    COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"

    def test_equal_text_is_one_user(self):
        assert self.COMPOSED != self.DECOMPOSED
        said = {"fairness_label_key": "user", "tenant_label_key": "user"}
        one, other = (resolved(said, {"user": name}) for name in (self.COMPOSED, self.DECOMPOSED))
        assert one.user == other.user == one.tenant == other.tenant == self.COMPOSED

    @pytest.mark.parametrize("limit", ["quota", "concurrency"])
    def test_and_has_one_limit(self, limit):
        limits = {
            "quota": quota(1, 1e-6, limit_by_label_key="key"),
            "concurrency": concurrency(1, limit_by_label_key="key"),
        }

        async def main():
            flows = scheduler(**{limit: limits[limit]})
            assert (await flows.start_flow("p", {"key": self.COMPOSED})).should_run()
            assert not (await flows.start_flow("p", {"key": self.DECOMPOSED}, 0)).should_run()

        run(main())

    @pytest.mark.parametrize("other", ["ab", "a\u200b", "\u202ea", "\u0430", "A", "a "])
    def test_what_only_looks_alike_is_another(self, other):
        """Cyrillic a, zero width, right to left: a look-alike gets a bucket of its own, and not its victim's."""
        assert canonical(other) != canonical("a")

    def test_long_keys_go_by_their_hash(self):
        long = "k" * 10_000
        keys = {canonical(long), canonical(long + "k"), canonical("k" * 128), canonical("k" * 129)}
        assert len(keys) == 4
        assert all(len(key) <= 128 for key in keys)
        assert canonical("\ud800" * 500).startswith("sha256:")

    @given(st.text(alphabet=st.characters(codec=None), max_size=200))
    def test_canonical_is_stable_and_bounded(self, text):
        key = canonical(text)
        assert canonical(unicodedata.normalize("NFC", text)) == key
        assert len(key) <= 128

    def test_a_hundred_thousand_users_leave_nothing(self):
        async def main():
            flows = scheduler(
                quota=quota(1, 1e6, limit_by_label_key="user"),
                concurrency=concurrency(1, limit_by_label_key="user"),
                scheduler={"fairness_label_key": "user", "tenant_label_key": "user"},
            )
            for number in range(100_000):
                (await flows.start_flow("p", {"user": f"u{number}"})).end()
                if number % 1000 == 999:
                    await until(number * 1e-6)  # the buckets of those before are full again
            (await flows.start_flow("p", {"user": "last"})).end()
            point: Any = point_of(flows)
            balanced(flows)
            assert len(point.policy._flows) <= 1
            assert point.parts.quota.keys <= 2000

        run(main())

    def test_nor_do_users_that_waited(self):
        async def main():
            flows = scheduler(
                concurrency=concurrency(1),
                scheduler={"fairness_label_key": "user", "max_queue": 10_000},
            )
            asked = [(number, {"user": f"u{number}"}) for number in range(5_000)]
            await backlog(flows, asked)
            (await flows.start_flow("p")).end()
            point: Any = point_of(flows)
            balanced(flows)
            assert len(point.policy._flows) <= 1
            assert not point.policy._groups

        run(main())


LABELS = st.dictionaries(
    st.sampled_from(["tokens", "priority", "workload", "user", "tenant", "key", "tier"]),
    st.text(alphabet=st.characters(codec=None), max_size=30)
    | st.floats().map(repr)
    | st.integers().map(str)
    | st.sampled_from([*BAD, *GOOD]),
)


@settings(max_examples=50)
@given(st.lists(LABELS, max_size=8))
@example([{"tokens": "1e15", "priority": "1e-300"}] * 3)
@example([{"priority": "5e-324"}] * 3)
def test_no_label_ever_raises(flows_labels):
    async def main():
        flows = scheduler(
            quota=quota(10, 1, limit_by_label_key="key"),
            concurrency=concurrency(2),
            scheduler=WORKLOADS
            | {
                "tokens_label_key": "tokens",
                "priority_label_key": "priority",
                "workload_label_key": "workload",
                "fairness_label_key": "user",
                "tenant_label_key": "tenant",
            },
        )
        tasks = [
            asyncio.ensure_future(flows.start_flow("p", labels, timeout=1.0))
            for labels in flows_labels
        ]
        await ticks()
        for task in tasks:
            flow = await task
            assert flow.should_run() or flow.message
            flow.end()
        balanced(flows)
        assert flows.metrics()

    run(main())


def test_the_signal_of_a_load_control_is_no_label():
    """A posted signal goes by its own name, whatever labels say."""

    async def main():
        flows = scheduler(load={"signal": "tokens"})
        control = point_of(flows).load
        assert isinstance(control, LoadControl)
        assert flows.post_signal("tokens", 5.0)
        assert not flows.post_signal("other", 5.0)

    run(main())


def test_labels_that_are_not_text_do_not_fail():
    said = Scheduler.model_validate(
        {
            "workloads": [{"name": "five", "regex": {"user_id": "^5$"}}],
            "tokens_label_key": "tokens",
            "fairness_label_key": "user_id",
        }
    )
    labels: Any = {"user_id": 5, "tokens": 4}
    resolver = Resolver(said)
    found = resolver.parameters(labels)
    assert (found.workload[0], found.tokens, resolver.user(labels)) == ("five", 4.0, "5")


@pytest.mark.parametrize("keys", [(), ("workload",), ("tenant",)])
def test_what_is_remembered_of_labels_is_what_is_read_from_them(keys: tuple[str, ...]):
    """Also what is counted, and with values that are no text, or are equal though they differ."""
    said = Scheduler.model_validate(
        {
            "workloads": [
                {"name": "one", "regex": {"a": "^1$"}, "not": {"exists": ["b"]}},
                {"name": "two", "any": [{"in": {"c": ["1"]}}]},
                {"name": "three", "not_in": {"d": ["1"]}, "all": [{"match_labels": {"e": "1"}}]},
            ],
            "tokens_label_key": "tokens",
            "priority_label_key": "priority",
            "default_max_priority": 0.5,
            **{f"{key}_label_key": key for key in keys},
        }
    )
    values: tuple[Any, ...] = ("1", "1", "x", 1, True, None, "-1", "1" * 200)
    rng, remembering = random.Random(1), Resolver(said)
    for _ in range(3_000):
        given = rng.sample(("a", "b", "c", "d", "e", "tokens", "priority", *keys), rng.randrange(4))
        labels = {key: rng.choice(values) for key in (*given, *keys[: rng.randrange(2)])}
        fresh = Resolver(said)
        bad, missing = remembering.bad_labels.copy(), remembering.missing_labels.copy()
        assert remembering.parameters(labels) == fresh.parameters(labels)
        assert remembering.bad_labels == bad + fresh.bad_labels
        assert remembering.missing_labels == missing + fresh.missing_labels
    assert remembering._known


def test_a_value_that_cannot_be_hashed_does_not_fail():
    said = Scheduler.model_validate({"workloads": [{"match_labels": {"a": "1"}}]})
    labels: Any = {"a": ["1"]}
    assert Resolver(said).parameters(labels).workload[0] == "default"


def test_what_is_remembered_of_labels_is_bounded(monkeypatch):
    monkeypatch.setattr(workloads, "MOST_KNOWN", 10)
    resolver = Resolver(Scheduler.model_validate({"tokens_label_key": "tokens"}))
    for tokens in range(1, 100):
        assert resolver.parameters({"tokens": str(tokens)}).tokens == tokens
        assert len(resolver._known) <= 10
