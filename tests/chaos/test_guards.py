"""The guards that a chaos run can do without: each still finds what it takes away."""

import pytest

from chaos import guards
from chaos.guards import GUARDS


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_finds_what_it_takes_away(name, monkeypatch):
    taken = []
    monkeypatch.setattr(guards, "_patch", lambda owner, name, _: taken.append(hasattr(owner, name)))
    GUARDS[name].switch_off()
    assert taken
    assert all(taken)


def test_what_is_not_there_cannot_be_taken_away():
    with pytest.raises(AttributeError, match="called something else now"):
        guards._patch(guards, "no such thing", None)
