"""Which worker gets a job, and when a worker is given up."""

from fairlead.jobs.records import RunningJob, WorkerRow
from fairlead.jobs.roster import Roster

LEASE = 15.0


def worker(number, slots=2, executor="ocr", beats=1, expired=False, draining=False):
    return WorkerRow(number, f"w{number}", executor, slots, "process", beats, expired, draining)


def running(node, on):
    return RunningJob(1, node, "t", "ocr", "", on, 7, True, 0.0, 0, 0, 0, 1.0, False)


class TestPlacing:
    def test_most_free_first_and_own_among_equals(self):
        roster = Roster(LEASE)
        roster.see([worker(1, 1), worker(2, 3), worker(3, 2)], 0.0)
        assert [roster.place("ocr", "t", (1, n), {3}) for n in range(7)] == [2, 3, 2, 3, 1, 2, None]

    def test_full_draining_expired_and_foreign_ones_get_nothing(self):
        roster = Roster(LEASE)
        roster.see(
            [
                worker(1, 1),
                worker(2, draining=True),
                worker(3, expired=True),
                worker(4, executor="gpu"),
            ],
            0.0,
        )
        assert roster.place("ocr", "t", (1, 0), ()) == 1
        assert roster.place("ocr", "t", (1, 1), ()) is None

    def test_room_comes_back_once(self):
        roster = Roster(LEASE)
        roster.see([worker(1, 1)], 0.0)
        assert roster.place("ocr", "t", (1, 0), ()) == 1
        roster.release([(1, 0)])
        roster.release([(1, 0)])
        assert roster.place("ocr", "t", (1, 1), ()) == 1
        assert roster.place("ocr", "t", (1, 2), ()) is None

    def test_what_ran_before_counts(self):
        roster = Roster(LEASE)
        roster.see([worker(1, 2)], 0.0)
        roster.hold([running(0, on=1), running(0, on=1)])
        assert roster.place("ocr", "t", (1, 1), ()) == 1
        assert roster.place("ocr", "t", (1, 2), ()) is None
        assert roster.busy() == {"ocr": 2}

    def test_slots_of_who_lives(self):
        roster = Roster(LEASE)
        roster.see([worker(1, 2), worker(2, 3), worker(3, 5, expired=True)], 0.0)
        assert roster.slots() == {"ocr": 5}
        roster.see([], 1.0)
        assert roster.slots() == {"ocr": 0}  # told once more, so that the frontier hears of it


class TestGivingUp:
    def test_a_clock_that_jumps_robs_nobody(self):
        roster = Roster(LEASE)
        roster.see([worker(1, beats=1)], 0.0)
        roster.see([worker(1, beats=1, expired=True)], 1.0)  # the store's clock went a day ahead
        assert roster.silent(1.0) == []
        roster.see([worker(1, beats=2)], 5.0)
        roster.see([worker(1, beats=2, expired=True)], 19.0)
        assert roster.silent(19.0) == []

    def test_silence_for_a_lease_by_both_clocks(self):
        roster = Roster(LEASE)
        roster.see([worker(1)], 0.0)
        roster.see([worker(1, expired=True)], LEASE)
        assert roster.silent(LEASE) == [1]

    def test_silence_by_our_clock_alone_is_not_enough(self):
        roster = Roster(LEASE)
        roster.see([worker(1)], 0.0)
        roster.see([worker(1)], 100.0)
        assert roster.silent(100.0) == []

    def test_one_never_seen_alive_is_given_up_at_once(self):
        roster = Roster(LEASE)
        roster.see([worker(1, expired=True)], 0.0)
        assert roster.silent(0.0) == [1]
