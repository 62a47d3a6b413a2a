"""Collections leave out what was there at the start, and still find what is made later."""

import gc
import weakref

import pytest

from chainsched.runtime.support.garbage import YOUNG, collect_less_often, leave_out_what_exists


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before():
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_what_exists_is_left_out_and_what_comes_later_is_collected():
    before = Node()
    leave_out_what_exists()
    after = Node()
    tracked = {id(found) for found in gc.get_objects() if isinstance(found, Node)}
    assert (id(before) in tracked, id(after) in tracked) == (False, True)
    seen = weakref.ref(after)
    del after
    gc.collect()
    assert seen() is None


def test_garbage_that_exists_is_collected_first():
    node = Node()
    seen = weakref.ref(node)
    del node
    leave_out_what_exists()
    assert seen() is None


def test_the_youngest_are_looked_at_less_often():
    older = gc.get_threshold()[1:]
    collect_less_often()
    assert gc.get_threshold() == (YOUNG, *older)
