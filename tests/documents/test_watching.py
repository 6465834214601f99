"""Following a file in virtual time: what is applied, what is refused, and that nothing is left behind."""

import asyncio
import gc
import logging
import os
import shutil
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fairlead.documents.losses import Loss
from fairlead.documents.watching import Watch
from fairlead.gateway.loading import Loaded, load, load_content
from fairlead.testing import run_virtual

GOOD, BETTER, BAD = "capacity: 1\n", "capacity: 2\n", "capacity: x\nlisten: 3\n"
SOON = 3.0  # what the issue allows


def nothing(loaded: Loaded) -> tuple[Loss, ...]:
    return ()


class Rig:
    """A watched file and what was applied of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "gateway.yaml"
        self.file.write_text(GOOD)
        self.applied: list[int | None] = []
        self.refused = 0
        self.watch = self.watching()

    def watching(self, apply: Callable[[Loaded], None] | None = None) -> Watch[Loaded]:
        return Watch(
            self.file, load_content, apply or self.apply, losses=nothing, refused=self.refuse
        )

    def apply(self, loaded: Loaded) -> None:
        assert not loaded.problems
        self.applied.append(loaded.settings.capacity)

    def refuse(self) -> None:
        self.refused += 1


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def play(rig: Rig, story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        rig.watch.start(asyncio.get_running_loop())
        await story()
        rig.watch.stop()

    run_virtual(main())


def test_a_file_that_stays_is_left_alone(rig):
    def refuse(*args: object) -> Loaded:
        raise AssertionError("nothing has changed")

    rig.watch = Watch(rig.file, refuse, rig.apply, losses=nothing)

    async def story() -> None:
        await asyncio.sleep(3600)
        os.utime(rig.file)
        await asyncio.sleep(SOON)

    play(rig, story)
    assert (rig.applied, rig.refused) == ([], 0)


def in_place(file: Path, text: str) -> None:
    file.write_text(text)


def replaced(file: Path, text: str) -> None:
    other = file.with_suffix(".new")
    other.write_text(text)
    other.replace(file)


def same_size_and_time(file: Path, text: str) -> None:
    """Only the content tells."""
    before = file.stat()
    file.write_text(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size


def removed_first(file: Path, text: str) -> None:
    file.unlink()
    file.write_text(text)


@pytest.mark.parametrize("write", [in_place, replaced, same_size_and_time, removed_first])
def test_a_good_file_applies_in_time(rig, write):
    async def story() -> None:
        await asyncio.sleep(10.5)
        write(rig.file, BETTER)
        await asyncio.sleep(SOON)
        assert rig.applied == [2]
        await asyncio.sleep(60)

    play(rig, story)
    assert (rig.applied, rig.refused) == ([2], 0)


def test_a_link_may_be_turned_elsewhere(tmp_path):
    """As Kubernetes does with a mounted ConfigMap."""
    for name, text in (("one", GOOD), ("two", BETTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "gateway.yaml").write_text(text)
    (tmp_path / "data").symlink_to("one")
    rig = Rig.__new__(Rig)
    rig.applied, rig.file = [], tmp_path / "gateway.yaml"
    rig.file.symlink_to("data/gateway.yaml")
    rig.watch = rig.watching()

    async def story() -> None:
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").replace(tmp_path / "data")
        shutil.rmtree(tmp_path / "one")
        await asyncio.sleep(SOON)

    play(rig, story)
    assert rig.applied == [2]


def test_a_bad_file_is_told_once_and_changes_nothing(rig, caplog):
    async def story() -> None:
        rig.file.write_text(BAD)
        await asyncio.sleep(SOON)
        assert (rig.applied, rig.refused) == ([], 1)
        await asyncio.sleep(60)

    play(rig, story)
    assert (rig.applied, rig.refused) == ([], 1)
    assert {(record.name, record.levelno) for record in caplog.records} == {
        ("fairlead.config", logging.ERROR)
    }
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith(f"{rig.file}:1:1 capacity: ")
    assert said[1].startswith(f"{rig.file}:2:1 listen: ")
    assert "the old configuration stays" in said[2]
    assert len(said) == 3


def test_a_problem_in_the_scheduler_alone_is_refused_too(rig):
    async def story() -> None:
        rig.file.write_text("priority_scheduler: {enabled: yes}\n")
        await asyncio.sleep(SOON)

    play(rig, story)
    assert (rig.applied, rig.refused) == ([], 1)


def test_good_after_bad_applies(rig):
    async def story() -> None:
        for text in (BAD, BETTER, BAD, GOOD):
            rig.file.write_text(text)
            await asyncio.sleep(SOON)

    play(rig, story)
    assert (rig.applied, rig.refused) == ([2, 1], 2)


def test_a_file_may_go_and_come_back(rig, caplog):
    async def story() -> None:
        rig.file.unlink()
        await asyncio.sleep(60)
        assert (rig.applied, rig.refused) == ([], 1)
        assert "No such file" in caplog.text
        rig.file.write_text(BETTER)
        await asyncio.sleep(SOON)

    play(rig, story)
    assert (rig.applied, rig.refused) == ([2], 1)


def test_a_file_that_is_being_written_is_left_alone(rig):
    """Emptied and then filled, as many editors do: what is there meanwhile is valid and must not be applied."""

    async def story() -> None:
        await asyncio.sleep(0.9)
        rig.file.write_text("capacity: 3\n")
        await asyncio.sleep(0.2)  # one look has seen it
        rig.file.write_text(BETTER)
        await asyncio.sleep(SOON)

    play(rig, story)
    assert (rig.applied, rig.refused) == ([2], 0)


def test_that_test_catches_a_watch_that_does_not_wait(rig):
    """The mutant: every look that differs is applied at once."""

    class Hasty(Watch[Loaded]):
        def _follow(self) -> None:
            super()._follow()
            if self._changing:
                super()._follow()

    rig.watch = Hasty(rig.file, load_content, rig.apply, losses=nothing)
    with pytest.raises(AssertionError):
        test_a_file_that_is_being_written_is_left_alone(rig)
    assert rig.applied == [3, 2]


def test_a_change_before_the_start_is_not_missed(rig):
    loaded = load(rig.file)
    rig.watch = Watch(rig.file, load_content, rig.apply, losses=nothing, since=loaded)
    rig.file.write_text(BETTER)

    async def story() -> None:
        await asyncio.sleep(SOON)

    play(rig, story)
    assert rig.applied == [2]


def test_an_apply_that_fails_is_told_and_the_watch_goes_on(rig, caplog):
    def apply(loaded: Loaded) -> None:
        if not rig.refused:
            raise ValueError("the pool is closed")
        rig.apply(loaded)

    rig.watch = rig.watching(apply)

    async def story() -> None:
        rig.file.write_text(BETTER)
        await asyncio.sleep(SOON)
        assert (rig.applied, rig.refused) == ([], 1)
        rig.file.write_text(GOOD)
        await asyncio.sleep(SOON)

    play(rig, story)
    assert (rig.applied, rig.refused) == ([1], 1)
    assert "the pool is closed" in caplog.text


def test_warnings_are_logged(rig, caplog):
    async def story() -> None:
        rig.file.write_text("priority_scheduler: {enabled: true}\n")
        await asyncio.sleep(SOON)

    play(rig, story)
    assert (rig.applied, rig.refused) == ([None], 0)
    assert "no tenant can reach" in caplog.text


def test_a_stopped_watch_looks_no_more(rig):
    async def story() -> None:
        rig.watch.stop()
        rig.watch.stop()
        rig.file.write_text(BETTER)
        await asyncio.sleep(60)

    play(rig, story)
    assert rig.applied == []


def test_apply_may_stop_the_watch(rig):
    def apply(loaded: Loaded) -> None:
        rig.apply(loaded)
        rig.watch.stop()

    rig.watch = rig.watching(apply)

    async def story() -> None:
        rig.file.write_text(BETTER)
        await asyncio.sleep(SOON)
        rig.file.write_text(GOOD)
        await asyncio.sleep(60)

    play(rig, story)
    assert (rig.applied, rig.refused) == ([2], 0)


def test_a_second_start_changes_nothing(rig):
    async def story() -> None:
        rig.watch.start(asyncio.get_running_loop())
        rig.file.write_text(BETTER)
        await asyncio.sleep(60)

    play(rig, story)
    assert rig.applied == [2]


def test_nothing_is_pending_when_the_loop_closes(rig):
    async def main() -> None:
        rig.watch.start(asyncio.get_running_loop())
        await asyncio.sleep(5)
        assert len(asyncio.all_tasks()) == 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_virtual(main())
        gc.collect()
