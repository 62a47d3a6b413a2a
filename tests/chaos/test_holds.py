"""The open transaction of a chaos run: it holds the manifests, and leaves nothing behind."""

import pytest
from django.db import transaction

from chainsched.models import ManifestState, WorkQueue
from chaos.holds import Hold
from tests.factories import make_manifest
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


def free():
    with transaction.atomic():
        states = ManifestState.objects.select_for_update(no_key=True, skip_locked=True)
        return set(states.values_list("manifest__external_id", flat=True))


def test_the_states_are_held_until_the_release():
    for name in ("a", "b", "c"):
        make_manifest(name, state={})
    hold = Hold(["a", "b"])
    hold.start()
    wait_until(lambda: free() == {"c"})
    hold.release()
    assert free() == {"a", "b", "c"}
    assert not WorkQueue.objects.exists()
