"""The number of free slots, which one thread counts while another fills them."""

from chainsched.runtime.workers.free_slots import FreeSlots


def test_claims_on_their_way_take_slots():
    slots = FreeSlots()
    slots.count(3)
    slots.hand_over(1)
    assert slots.ask() == 2
    slots.accept(1)
    slots.count(2)
    assert slots.ask() == 2


def test_a_worker_that_got_none_should_ask_again_when_one_is_counted():
    slots = FreeSlots()
    assert slots.ask() == 0
    assert not slots.count(0)
    assert slots.count(1)
    assert slots.ask() == 1


def test_a_worker_that_got_some_waits_for_results():
    slots = FreeSlots()
    slots.count(2)
    assert slots.ask() == 2
    assert not slots.count(2)
