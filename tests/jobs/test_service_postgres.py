"""The door as its users meet it, on PostgreSQL: the tests of test_service.py, and what only PostgreSQL can do."""

import asyncio

import pytest

from tests.engines_postgres import shared_url, wiped
from tests.jobs import test_service
from tests.jobs.test_service import *  # noqa: F403 - its tests are run again, with the fixture below

SCHEMA = "test_service"


@pytest.fixture  # type: ignore[no-redef]  # in the place of that one
def url():
    return asyncio.run(wiped(shared_url(), SCHEMA))


def test_every_class_runs_here_too():
    ours = {name for name in dir(test_service) if name.startswith("Test")}
    assert ours <= set(globals())


def test_one_look_answers_every_hint_before_it(url):
    async def main():
        jobs, *_ = test_service.small(url, poll="1h")
        store = await jobs.store()
        looks = 0

        async def take_news(process):
            nonlocal looks
            looks += 1
            return await plain(process)

        plain, store.take_news = store.take_news, take_news
        await store._hints.listening.wait()  # which is a hint, for nobody listened before
        async with jobs:
            await asyncio.sleep(0.3)
            return looks

    assert test_service.go(main()) == 1
