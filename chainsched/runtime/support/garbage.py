"""Garbage collection in processes that run for long: it leaves out all that was there at the start."""

from __future__ import annotations

import gc

# Of new objects, before the youngest are looked at: a turn over hundreds of rows makes thousands that live as long.
YOUNG = 10_000


def leave_out_what_exists() -> None:
    """Let collections look only at objects that are made from now on.

    Django and the project are some hundred thousand objects that stay as long as the process. A full collection, of
    which there are several a second under load, would look at each of them.
    """
    gc.collect()
    gc.freeze()


def collect_less_often() -> None:
    """Let the youngest objects become more before they are looked at. Only where no code of the project makes them."""
    _, *older = gc.get_threshold()
    gc.set_threshold(YOUNG, *older)
