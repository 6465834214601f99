"""Reading very much: garbage is not looked for meanwhile, and what was read counts as old."""

import gc
from collections.abc import Iterator

import pytest

from fairlead.jobs.reading import count_as_old, no_collecting


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.collect()
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_meanwhile():
    with no_collecting():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with no_collecting():
        pass
    assert not gc.isenabled()  # as somebody wants it


def test_what_was_read_counts_as_old_and_can_still_be_garbage():
    frozen = gc.get_freeze_count()
    with no_collecting():
        read: list[list[object]] = [[] for _ in range(5000)]
        count_as_old()
    young = {id(one) for age in (0, 1) for one in gc.get_objects(generation=age)}
    assert not young & {id(one) for one in read}
    assert gc.get_freeze_count() <= frozen
    for one in read:
        one.append(one)  # a circle each
    del one, read
    assert gc.collect() >= 5000


def test_what_somebody_froze_stays_frozen():
    gc.freeze()
    frozen = gc.get_freeze_count()
    with no_collecting():
        read: list[list[object]] = [[] for _ in range(5000)]
        count_as_old()
    # Some of it may have died meanwhile, as garbage does.
    assert frozen / 2 < gc.get_freeze_count() <= frozen
    assert len(read) == 5000
