"""DAG runs: results handed on, parallel where possible, slots only when inputs are ready, failures and cycles named."""

import asyncio
import random
import sys
from typing import Any

import pytest

from fairlead import ConfigError, Dag, QueueFull, Scheduler, SharedPool, ShuttingDown, WaitedTooLong
from fairlead.errors import CycleFound, DuplicateNode, GraphError, UnknownNode
from fairlead.testing import run_virtual
from tests.doors.rig import Busy, Journal, balanced, others, ticks, usable


def run(dag, slots=4):
    """Run a DAG by itself; return its results."""

    async def main():
        async with Scheduler.bounded(slots) as scheduler:
            results = await dag.run(scheduler)
            assert balanced(scheduler.stats())
            return results

    return run_virtual(main())


class TestResults:
    def test_a_mapping_of_names_in_the_order_of_adding(self):
        dag = Dag()
        dag.add("b", lambda: 1)
        dag.add("a", lambda: 2)
        assert list(run(dag).items()) == [("b", 1), ("a", 2)]

    def test_a_dependency_fills_the_parameter_of_its_name(self):
        dag = Dag()
        dag.add("one", lambda: 1)
        dag.add("ten", lambda: 10)
        dag.add("minus", lambda ten, one: ten - one, after=["one", "ten"])
        assert run(dag)["minus"] == 9

    def test_open_parameters_are_filled_in_the_order_of_after(self):
        dag = Dag()
        dag.add("one", lambda: 1)
        dag.add("ten", lambda: 10)
        dag.add("minus", lambda a, b: a - b, after=["ten", "one"])
        assert run(dag)["minus"] == 9

    def test_by_name_and_by_position_mix(self):
        dag = Dag()
        for name, value in (("one", 1), ("ten", 10), ("hundred", 100)):
            dag.add(name, lambda value=value: value)
        dag.add("all", lambda x, one, y: (x, one, y), after=["one", "ten", "hundred"])
        assert run(dag)["all"] == (10, 1, 100)

    def test_a_node_as_an_argument_stands_for_its_result(self):
        dag = Dag()
        two = dag.add("two", lambda: 2)
        dag.add("power", pow, two, 5)
        dag.add("keyword", lambda *, base: base + 1, base=two)
        dag.add("both", lambda base, exponent: base**exponent, two, exponent=two)
        results = run(dag)
        assert (results["power"], results["keyword"], results["both"]) == (32, 3, 4)

    def test_plain_arguments_come_first_and_results_after_them(self):
        dag = Dag()
        dag.add("one", lambda: 1)
        dag.add("scaled", lambda factor, value: factor * value, 7, after=["one"])
        dag.add("kept", lambda value, factor=2: factor * value, after=["one"])
        dag.add("given", lambda value, factor: factor * value, after=["one"], factor=5)
        results = run(dag)
        assert (results["scaled"], results["kept"], results["given"]) == (7, 2, 5)

    def test_star_arguments_take_what_is_left(self):
        dag = Dag()
        dag.add("one", lambda: 1)
        dag.add("ten", lambda: 10)
        dag.add("positional", lambda *results: results, after=["ten", "one"])
        dag.add("named", lambda **results: results, after=["ten", "one"])
        dag.add("mixed", lambda ten, **rest: (ten, rest), after=["ten", "one"])
        results = run(dag)
        assert results["positional"] == (10, 1)
        assert results["named"] == {"ten": 10, "one": 1}
        assert results["mixed"] == (10, {"one": 1})

    def test_a_function_without_open_parameters_gets_none(self):
        dag = Dag()
        journal: list[str] = []
        dag.add("first", lambda: journal.append("first"))
        dag.add("second", lambda: journal.append("second"), after=["first"])
        run(dag)
        assert journal == ["first", "second"]

    def test_an_optional_parameter_of_its_name_is_filled_another_is_not(self):
        dag = Dag()
        dag.add("one", lambda: 1)
        dag.add("named", lambda one=0: one, after=["one"])
        dag.add("other", lambda value=0: value, after=["one"])
        results = run(dag)
        assert (results["named"], results["other"]) == (1, 0)

    @pytest.mark.parametrize(
        ("fn", "given", "options", "expected"),
        [
            (int, (), {}, 12),
            (int, (), {"base": 16}, 18),
            (str, (), {}, "12"),
            (max, (), {}, "2"),
            (max, ("3",), {}, "3"),
            (dict.fromkeys, (), {}, {"1": None, "2": None}),
        ],
    )
    def test_a_function_without_a_signature_gets_results_in_order(
        self, fn, given, options, expected
    ):
        dag = Dag()
        dag.add("text", lambda: "12")
        dag.add("made", fn, *given, after=["text"], **options)
        assert run(dag)["made"] == expected

    def test_several_results_for_a_function_without_a_signature(self):
        dag = Dag()
        dag.add("one", lambda: 1)
        dag.add("nine", lambda: 9)
        dag.add("range", range, after=["one", "nine"])
        assert run(dag)["range"] == range(1, 9)

    def test_star_arguments_take_what_is_left_beside_a_keyword_of_their_own(self):
        dag = Dag()
        dag.add("one", lambda: 1)
        dag.add("after", lambda *rest, option: (rest, option), after=["one"], option="o")
        dag.add("named", lambda a, *rest: (a, rest), after=["one"], a="A")
        results = run(dag)
        assert results["after"] == ((1,), "o")
        assert results["named"] == ("A", ())  # what is given by name leaves no place before it

    def test_a_node_inside_a_list_a_tuple_or_a_dict_stands_for_its_result(self):
        def step(*args, **kwargs):
            return args, kwargs

        dag = Dag()
        plain: list[int] = [7]
        late = dag.add("late", asyncio.sleep, 1, "late")
        soon = dag.add("soon", lambda: "soon")
        dag.add("both", step, [late, (soon, 1)], plain, by={"x": {"y": [late]}, "z": soon})
        results = run(dag)
        args, kwargs = results["both"]
        assert args == (["late", ("soon", 1)], [7])
        assert args[1] is plain  # what holds no node is given as it is
        assert kwargs == {"by": {"x": {"y": ["late"]}, "z": "soon"}}
        assert run(dag) == results  # also the next time

    def test_what_holds_itself_or_very_much_is_an_argument_like_another(self):
        own: list[Any] = []
        own.append(own)
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        dag = Dag()
        dag.add("same", lambda a, b: (a is own, b is deep), own, deep)
        assert run(dag)["same"] == (True, True)

    def test_a_list_that_holds_itself_and_a_node_is_filled_once(self):
        dag = Dag()
        mixed: list[Any] = [dag.add("one", lambda: 1)]
        mixed.append(mixed)
        dag.add("two", lambda values: values[0], mixed)
        assert run(dag)["two"] == 1

    def test_after_takes_nodes_too_and_each_counts_once(self):
        dag = Dag()
        one = dag.add("one", lambda: 1)
        dag.add("two", lambda a, b: a + b, one, after=[one, "one"])
        assert run(dag)["two"] == 2

    def test_coroutine_functions_plain_functions_and_awaitables(self):
        async def slow(value):
            await asyncio.sleep(1)
            return value + 1

        dag = Dag()
        dag.add("one", lambda: 1)
        dag.add("two", slow, after=["one"])
        dag.add("three", lambda two: slow(two), after=["two"])
        assert run(dag) == {"one": 1, "two": 2, "three": 3}

    def test_nodes_may_be_named_before_they_are_added(self):
        dag = Dag()
        dag.add("later", lambda first: first, after=["first"])
        dag.add("first", lambda: 1)
        assert run(dag) == {"later": 1, "first": 1}

    def test_none_is_a_result_like_another(self):
        dag = Dag()
        dag.add("nothing", lambda: None)
        dag.add("seen", lambda nothing: nothing is None, after=["nothing"])
        assert run(dag)["seen"] is True

    def test_an_empty_dag_gives_an_empty_mapping(self):
        assert run(Dag()) == {}


def test_independent_nodes_run_in_parallel():
    async def main():
        dag = Dag()
        for number in range(4):
            dag.add(f"n{number}", asyncio.sleep, 1)
        dag.add("last", asyncio.sleep, 1, after=["n0", "n1", "n2", "n3"])
        async with Scheduler.bounded(4) as scheduler:
            await dag.run(scheduler)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 2


def test_a_node_starts_when_its_own_inputs_are_ready_not_when_a_layer_is():
    async def main():
        dag = Dag()
        dag.add("short", asyncio.sleep, 1)
        dag.add("long", asyncio.sleep, 10)
        dag.add("after short", asyncio.get_running_loop().time, after=["short"])
        async with Scheduler.bounded(4) as scheduler:
            return await dag.run(scheduler)

    assert run_virtual(main())["after short"] == 1


def test_priorities_decide_between_ready_nodes_of_all_executions():
    async def main():
        journal = Journal()

        def made(name, priority):
            dag = Dag()
            for number in range(3):
                dag.add(f"n{number}", journal.note, name, priority=priority)
            return dag

        async with Scheduler.bounded(1) as scheduler:
            busy = Busy(scheduler)
            runs = [
                asyncio.create_task(made(name, priority).run(scheduler))
                for name, priority in (("low", 20), ("high", 80), ("normal", 50))
            ]
            await ticks()
            await busy.release()
            await asyncio.gather(*runs)
            stats = scheduler.stats()
            assert (stats.high_priority_completed, stats.low_priority_completed) == (3, 3)
        return journal

    assert run_virtual(main()) == ["high"] * 3 + ["normal"] * 3 + ["low"] * 3


@pytest.mark.parametrize("slots", [1, 2])
def test_a_node_holds_no_slot_while_it_waits_for_its_inputs(slots):
    """Wider and deeper than the slots, downstream ranked higher: the seed's runtime would stand still."""

    async def main():
        dag = Dag()
        for column in range(10):
            for row in range(10):
                above = [f"{column}.{row - 1}"] if row else []
                dag.add(f"{column}.{row}", asyncio.sleep, 1, after=above, priority=row * 10)
        dag.add("end", asyncio.sleep, 1, after=[f"{c}.9" for c in range(10)], priority=100)
        async with Scheduler.bounded(slots) as scheduler:
            most = 0

            async def watch():
                nonlocal most
                for _ in range(400):
                    stats = scheduler.stats()
                    most = max(most, stats.active_count + stats.queued_count)
                    await asyncio.sleep(0.5)

            watching = asyncio.create_task(watch())
            await dag.run(scheduler)
            watching.cancel()
            assert most <= 10  # ready nodes alone have come to the scheduler
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 100 / slots + 1


def test_many_runs_of_one_dag_at_once():
    async def main():
        dag = Dag()
        dag.add("draw", random.random)
        dag.add("twice", lambda draw: draw * 2, after=["draw"], priority=80)
        dag.add("check", lambda draw, twice: twice == draw * 2, after=["draw", "twice"])
        async with Scheduler.bounded(4) as scheduler:
            results = await asyncio.gather(*(dag.run(scheduler) for _ in range(200)))
            assert balanced(scheduler.stats())
        assert all(result["check"] for result in results)
        assert len({result["draw"] for result in results}) == 200

    run_virtual(main())


def test_random_graphs_give_the_results_of_a_plain_evaluation():
    for seed in range(20):
        dice = random.Random(seed)
        dag = Dag()
        expected: dict[str, int] = {}
        for number in range(60):
            inputs = sorted(dice.sample(range(number), min(number, dice.randrange(4))))
            expected[str(number)] = number + sum(expected[str(each)] for each in inputs)

            pause = dice.random()

            async def add(*values, number=number, pause=pause):
                await asyncio.sleep(pause)
                return number + sum(values)

            dag.add(
                str(number), add, after=[str(each) for each in inputs], priority=dice.randrange(101)
            )
        assert run(dag, slots=dice.randrange(1, 6)) == expected


class TestFailure:
    def test_it_is_raised_as_it_is_with_the_node_named_and_the_rest_is_cancelled(self):
        async def main():
            error = KeyError("as it is")
            journal = Journal()

            async def fail():
                await asyncio.sleep(1)
                raise error

            async def slow():
                try:
                    await asyncio.sleep(60)
                finally:
                    journal.append("cancelled")

            dag = Dag()
            dag.add("fails", fail)
            dag.add("slow", slow)
            dag.add("queued", journal.note, "queued")
            dag.add("downstream", journal.note, "downstream", after=["fails"])
            async with Scheduler.bounded(2) as scheduler:
                with pytest.raises(KeyError) as caught:
                    await dag.run(scheduler)
                assert caught.value is error
                assert any("'fails'" in note for note in caught.value.__notes__)
                assert journal == ["cancelled"]
                assert asyncio.get_running_loop().time() == 1
                await ticks()
                stats = scheduler.stats()
                assert balanced(stats)
                assert await usable(scheduler, 2)
            assert not others()

        run_virtual(main())

    def test_a_second_failure_on_the_way_out_is_no_noise(self):
        async def main():
            reported: list[Any] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: reported.append(context))

            async def fail(pause):
                try:
                    await asyncio.sleep(pause)
                finally:
                    raise KeyError(pause)

            dag = Dag()
            dag.add("a", fail, 1)
            dag.add("b", fail, 60)
            async with Scheduler.bounded(2) as scheduler:
                with pytest.raises(KeyError, match="1"):
                    await dag.run(scheduler)
                assert balanced(scheduler.stats())
            assert reported == []

        run_virtual(main())

    def test_arguments_that_do_not_fit_are_the_nodes_failure(self):
        dag = Dag()
        dag.add("one", lambda: 1)
        dag.add("two", lambda a, b, c: a, after=["one"])
        with pytest.raises(TypeError) as caught:
            run(dag)
        assert any("'two'" in note for note in caught.value.__notes__)

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_what_is_no_exception_ends_the_run_too(self, kind):
        """As `pytest.fail` raises; the worker it ends reports it to the loop besides."""

        class Abort(BaseException):
            pass

        def fail():
            raise Abort

        async def fail_later():
            await asyncio.sleep(1)
            raise Abort

        async def main():
            reported: list[Any] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
            dag = Dag()
            dag.add("one", fail if kind == "sync" else fail_later)
            dag.add("two", lambda one: one, after=["one"])
            async with Scheduler.bounded(2) as scheduler:
                with pytest.raises(Abort) as caught:
                    await asyncio.wait_for(dag.run(scheduler), 60)
                assert any("'one'" in note for note in caught.value.__notes__)
                assert balanced(scheduler.stats())
                assert await usable(scheduler, 2)
            assert not any("callback" in message for message in reported)

        run_virtual(main())

    def test_stop_iteration_is_a_failure_like_another(self):
        dag = Dag()
        dag.add("one", next, iter([]))
        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            run(dag)
        assert any("'one'" in note for note in caught.value.__notes__)

    def test_one_run_fails_alone(self):
        async def main():
            calls = 0

            def sometimes():
                nonlocal calls
                calls += 1
                if calls % 2:
                    raise KeyError
                return "fine"

            dag = Dag()
            dag.add("a", sometimes)
            async with Scheduler.bounded(1) as scheduler:
                runs = (dag.run(scheduler) for _ in range(4))
                results = await asyncio.gather(*runs, return_exceptions=True)
            return [result if isinstance(result, dict) else type(result) for result in results]

        assert run_virtual(main()) == [KeyError, {"a": "fine"}, KeyError, {"a": "fine"}]

    def test_a_refusal_is_a_failure(self):
        async def main():
            dag = Dag()
            for number in range(5):
                dag.add(str(number), asyncio.sleep, 1)
            async with Scheduler.bounded(1, max_queue_size=2) as scheduler:
                with pytest.raises(QueueFull):
                    await dag.run(scheduler)
                await ticks()
                assert balanced(scheduler.stats())
            with pytest.raises(ShuttingDown):
                await dag.run(scheduler)

        run_virtual(main())

    def test_a_node_that_waits_too_long(self):
        async def main():
            dag = Dag()
            dag.add("a", int)
            async with Scheduler.bounded(1) as scheduler:
                busy = Busy(scheduler)
                with pytest.raises(WaitedTooLong):
                    await dag.run(scheduler.bind(timeout=3))
                await busy.release()

        run_virtual(main())


class TestCancellation:
    def test_of_the_run_reaches_running_and_queued_nodes(self):
        async def main():
            journal = Journal()

            async def slow():
                try:
                    await asyncio.sleep(60)
                finally:
                    await asyncio.sleep(1)
                    journal.append("cleaned up")

            dag = Dag()
            dag.add("running", slow)
            dag.add("queued", journal.note, "queued")
            dag.add("downstream", journal.note, "downstream", after=["running"])
            async with Scheduler.bounded(1) as scheduler:
                running = asyncio.create_task(dag.run(scheduler))
                await ticks()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                assert journal == ["cleaned up"]
                assert balanced(scheduler.stats())
                assert await usable(scheduler, 1)
            assert not others()

        run_virtual(main())

    def test_of_a_node_by_itself_cancels_the_run(self):
        async def main():
            async def give_up():
                raise asyncio.CancelledError

            dag = Dag()
            dag.add("a", give_up)
            dag.add("b", asyncio.sleep, 60)
            async with Scheduler.bounded(2) as scheduler:
                with pytest.raises(asyncio.CancelledError, match="'a'"):
                    await dag.run(scheduler)
                assert asyncio.get_running_loop().time() == 0
                assert balanced(scheduler.stats())

        run_virtual(main())

    def test_by_an_abort_of_the_scheduler(self):
        async def main():
            dag = Dag()
            dag.add("a", asyncio.sleep, 1)
            dag.add("b", asyncio.sleep, 1)
            scheduler = Scheduler.bounded(1)
            running = asyncio.create_task(dag.run(scheduler))
            await ticks()
            await scheduler.shutdown("abort")
            with pytest.raises(ShuttingDown):
                await running
            assert balanced(scheduler.stats())

        run_virtual(main())


class TestWrongGraphs:
    @pytest.mark.parametrize(
        "edges",
        [
            {"a": ["a"]},
            {"a": ["b"], "b": ["a"]},
            {"a": ["c"], "b": ["a"], "c": ["b"]},
            {f"n{i}": [f"n{(i + 1) % 50}"] for i in range(50)},
        ],
        ids=["itself", "two", "three", "fifty"],
    )
    def test_a_cycle_is_reported_with_every_node_in_it_and_nothing_has_run(self, edges):
        async def main():
            ran = Journal()
            dag = Dag()
            dag.add("innocent", ran.note, "innocent")
            for name, after in edges.items():
                dag.add(name, ran.note, name, after=after)
            async with Scheduler.bounded(4) as scheduler:
                before = scheduler.stats()
                with pytest.raises(CycleFound) as caught:
                    await dag.run(scheduler)
                assert scheduler.stats() == before
            assert ran == []
            return caught.value

        error = run_virtual(main())
        assert sorted(error.cycle) == sorted(edges)
        assert all(name in str(error) for name in edges)
        for at, name in enumerate(error.cycle):  # in the order of the ring
            following = error.cycle[(at + 1) % len(error.cycle)]
            assert following in edges[name] or name in edges[following]
        assert isinstance(error, GraphError)

    def test_an_unknown_dependency_is_named_and_nothing_has_run(self):
        dag = Dag()
        ran: list[int] = []
        dag.add("first", ran.append, 1)
        dag.add("second", ran.append, 2, after=["frist"])
        with pytest.raises(UnknownNode, match=r"'second' waits for 'frist'"):
            run(dag)
        assert ran == []

    def test_a_node_of_another_dag_is_unknown_here(self):
        stranger = Dag().add("stranger", int)
        dag = Dag()
        dag.add("a", abs, stranger)
        with pytest.raises(UnknownNode, match="'stranger'"):
            run(dag)

    def test_a_node_of_another_dag_inside_a_list_is_unknown_here(self):
        other = Dag().add("x", int)
        dag = Dag()
        dag.add("y", len, [other])
        with pytest.raises(UnknownNode, match="'x'"):
            run(dag)

    def test_a_namesake_of_a_node_of_another_dag_is_not_that_node(self):
        stranger = Dag().add("one", lambda: "theirs")
        dag = Dag()
        dag.add("one", lambda: "ours")
        dag.add("a", str, stranger)
        with pytest.raises(UnknownNode, match="'one'"):
            run(dag)

    def test_a_duplicate_is_refused_and_the_first_stays(self):
        dag = Dag()
        dag.add("a", lambda: "first")
        with pytest.raises(DuplicateNode, match="'a'"):
            dag.add("a", lambda: "second")
        assert run(dag) == {"a": "first"}

    @pytest.mark.parametrize(
        ("name", "fn", "settings"),
        [
            ("", int, {}),
            (5, int, {}),
            (None, int, {}),
            ("a", 5, {}),
            ("a", None, {}),
            ("a", int, {"after": "b"}),
            ("a", int, {"after": [5]}),
            ("a", int, {"priority": "high"}),
            ("a", int, {"priority": True}),
            ("a", int, {"priority": float("nan")}),
        ],
        ids=repr,
    )
    def test_a_bad_node_is_refused_and_nothing_was_added(self, name, fn, settings):
        dag = Dag()
        with pytest.raises(ConfigError):
            dag.add(name, fn, **settings)
        assert run(dag) == {}

    def test_a_coroutine_object_is_no_function(self):
        coroutine = asyncio.sleep(0)
        with pytest.raises(ConfigError, match="function"):
            Dag().add("a", coroutine)  # type: ignore[arg-type]
        coroutine.close()


@pytest.mark.parametrize("slots", [1, 16])
def test_a_chain_of_five_thousand_nodes(slots):
    dag = Dag()
    dag.add("0", lambda: 0)
    for number in range(1, 5000):
        dag.add(str(number), lambda before: before + 1, after=[str(number - 1)])
    assert run(dag, slots)["4999"] == 4999


def test_a_cycle_of_five_thousand_nodes():
    dag = Dag()
    for number in range(5000):
        dag.add(str(number), int, after=[str((number + 1) % 5000)])
    with pytest.raises(CycleFound) as caught:
        run(dag)
    assert len(caught.value.cycle) == 5000


def test_a_fan_out_and_in_of_two_thousand():
    dag = Dag()
    dag.add("start", lambda: 1)
    for number in range(2000):
        dag.add(str(number), lambda start: start, after=["start"])
    dag.add("sum", lambda *ones: sum(ones), after=[str(number) for number in range(2000)])
    assert run(dag)["sum"] == 2000


def test_it_runs_over_views_members_and_the_unbounded_scheduler():
    async def main():
        dag = Dag()
        dag.add("a", lambda: 1)
        dag.add("b", lambda a: a + 1, after=["a"])
        places = [
            Scheduler.unbounded(),
            Scheduler.bounded(1).bind(tenant="a"),
            SharedPool(max_concurrency=1).scheduler(),
        ]
        return [await dag.run(place) for place in places]

    assert run_virtual(main()) == [{"a": 1, "b": 2}] * 3


def test_a_dag_may_run_inside_work_of_the_same_scheduler_while_slots_are_left():
    async def main():
        inner = Dag()
        inner.add("a", lambda: 1)
        async with Scheduler.bounded(2) as scheduler:
            return await scheduler.spawn(50, inner.run, scheduler)

    assert run_virtual(main()) == {"a": 1}


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x, **options: (x, options), ("A", {})),
        (lambda x, *rest: (x, rest), ("A", ())),
    ],
)
def test_what_is_open_is_filled_before_the_rest_is_collected(fn, expected):
    async def main():
        dag = Dag()
        dag.add("a", lambda: "A")
        dag.add("step", fn, after=["a"])
        async with Scheduler.bounded(2) as scheduler:
            return await dag.run(scheduler)

    assert run_virtual(main())["step"] == expected


def test_a_parameter_named_as_a_dependency_beside_star_args():
    async def main():
        dag = Dag()
        dag.add("a", lambda: "A")
        dag.add("y", lambda: "Y")
        dag.add("step", lambda a, *rest: (a, rest), after=["y", "a"])
        async with Scheduler.bounded(2) as scheduler:
            return await dag.run(scheduler)

    assert run_virtual(main())["step"] == ("A", ("Y",))


def test_an_exit_in_a_node_ends_the_program_though_another_has_not_begun():
    async def main():
        dag = Dag()
        dag.add("leave", sys.exit, 3)
        dag.add("next", asyncio.sleep, 1)
        async with Scheduler.bounded(1) as scheduler:
            await dag.run(scheduler)

    with pytest.raises(SystemExit):
        run_virtual(main())
