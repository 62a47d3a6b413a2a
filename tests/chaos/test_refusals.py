"""Rows that a chaos run lets the database refuse."""

import pytest
from django.db import IntegrityError, transaction

from chainsched.models import Metadata, WorkQueue
from chaos import refusals
from tests.factories import make_execution, make_manifest, make_queue_row

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def is_refused(make, manifest):
    try:
        with transaction.atomic():
            make(manifest)
            transaction.set_rollback(True)
    except IntegrityError:
        return True
    return False


def test_rows_of_the_named_manifests_are_refused_in_one_table_each_until_all_are_allowed():
    one, two, three = (make_manifest(name, state={}) for name in ("one", "two", "three"))
    refusals.install()
    assert not is_refused(make_queue_row, one)
    refusals.refuse([("one", WorkQueue), ("two", Metadata)])
    assert [is_refused(make_queue_row, manifest) for manifest in (one, two, three)] == [True, False, False]
    assert [is_refused(make_execution, manifest) for manifest in (one, two, three)] == [False, True, False]
    refusals.allow_all()
    assert not is_refused(make_queue_row, one)
