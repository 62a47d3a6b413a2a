"""The unit of a manifest's work: an item, with the runs of the graph that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Carrier(Protocol):
    """A row that an item is stored in: a queue row, an execution."""

    @property
    def run_id(self) -> int | None: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def has_tokens(self) -> bool: ...
    @property
    def is_again(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Item:
    """The data of an item from being due to its end: the runs that it stands for, by its tokens in them.

    A token is a place where a join, or the end of a run, counts the item as open. ``has_tokens`` says whether it is
    counted now; a disabled manifest's item is not. ``is_again``: an earlier item may have ended in one of its runs.
    """

    run_id: int | None = None
    tokens: tuple[int, ...] = ()
    has_tokens: bool = False
    is_again: bool = False

    @classmethod
    def of(cls, row: Carrier) -> Item:
        """The item that a row is a state of."""
        return cls(row.run_id, tuple(row.tokens), row.has_tokens, row.is_again)

    @property
    def held(self) -> tuple[int, ...]:
        """The tokens that are counted now."""
        return self.tokens if self.has_tokens else ()

    def joined(self, other: Item, *, has_tokens: bool) -> Item:
        """This item after it took another over: it stands for the runs of both, and is named after the newest."""
        tokens = tuple(sorted({*self.tokens, *other.tokens}))
        return Item(
            run_id=max(self.run_id or 0, other.run_id or 0) or None,
            tokens=tokens,
            has_tokens=has_tokens and bool(tokens),
            is_again=self.is_again or other.is_again,
        )


NO_ITEM = Item()
