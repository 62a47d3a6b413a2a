"""The guards that a chaos run can switch off: each still finds the code that it replaces."""

import pytest

from chaos import sabotage
from chaos.checker import INVARIANTS
from chaos.guards import GUARDS


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_finds_the_code_that_it_replaces(name, monkeypatch):
    found = []
    monkeypatch.setattr(sabotage, "_patch", lambda owner, name, _: found.append(hasattr(owner, name)))
    GUARDS[name].switch_off()
    assert found
    assert all(found)


def test_code_that_does_not_exist_cannot_be_replaced():
    with pytest.raises(AttributeError, match="has another name now"):
        sabotage._patch(sabotage, "no such thing", None)


def test_there_is_a_guard_for_each_invariant():
    # These have no guard of their own: they check another invariant in another way, or the run itself.
    without_guard = {
        "dependents begin after their parents",
        "failures have a cause",
        "fsck finds nothing",
        "all faults happened",
    }
    assert {name for guard in GUARDS.values() for name in guard.turns_red} == set(INVARIANTS) - without_guard
