"""Conditions: comparisons that must hold for a while, and confirmations of which none may say no."""

from math import nan

import pytest

from fairlead.flows.conditions import Decider, all_confirm


def test_a_decider_waits_on_both_edges_each_for_its_own_time():
    decider = Decider("gt", true_for=5.0, false_for=20.0)
    assert [decider.decide(2, 1, now) for now in (0.0, 4.9, 5.0, 6.0)] == [False, False, True, True]
    assert [decider.decide(0, 1, now) for now in (7.0, 26.9, 27.0)] == [True, True, False]


def test_an_interruption_begins_the_wait_anew():
    decider = Decider("gt", true_for=5.0)
    assert decider.decide(2, 1, 0.0) is False
    assert decider.decide(0, 1, 4.0) is False
    assert decider.decide(2, 1, 5.0) is False
    assert decider.decide(None, 1, 8.0) is None
    assert decider.decide(2, 1, 9.0) is False
    assert decider.decide(2, 1, 14.0) is True
    assert decider.decide(nan, 1, 15.0) is None
    assert decider.decide(2, 1, 16.0) is True
    assert decider.decide(0, 1, 17.0) is False  # false_for is 0


def test_confirmations_are_all_given_or_one_denies():
    assert all_confirm([]) is True
    assert all_confirm([True, True]) is True
    assert all_confirm([True, None]) is None
    assert all_confirm([None, False, True]) is False


class OneEdged(Decider):
    """Uses true_for on both edges, as the original does."""

    def __init__(self, condition, *, true_for=0.0, false_for=0.0):
        super().__init__(condition, true_for=true_for, false_for=true_for)


def test_a_decider_with_one_time_for_both_edges_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "Decider", OneEdged)
    with pytest.raises(AssertionError):
        test_a_decider_waits_on_both_edges_each_for_its_own_time()
