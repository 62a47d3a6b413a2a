"""The guards that a chaos run can do without: each still finds what it takes away."""

import pytest

from chaos import sabotage
from chaos.checker import INVARIANTS
from chaos.guards import GUARDS


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_finds_what_it_takes_away(name, monkeypatch):
    taken = []
    monkeypatch.setattr(sabotage, "_patch", lambda owner, name, _: taken.append(hasattr(owner, name)))
    GUARDS[name].switch_off()
    assert taken
    assert all(taken)


def test_what_is_not_there_cannot_be_taken_away():
    with pytest.raises(AttributeError, match="called something else now"):
        sabotage._patch(sabotage, "no such thing", None)


def test_there_is_a_guard_for_what_is_judged():
    # These take no guard away: they look once more from another side, or at the run itself.
    without_guard = {
        "dependents begin after their parents",
        "failures have a cause",
        "fsck finds nothing",
        "all faults happened",
    }
    assert {name for guard in GUARDS.values() for name in guard.turns_red} == set(INVARIANTS) - without_guard
