"""Several counts in one statement."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chainsched.db.counts import count_each
from chainsched.models import Manifest, ManifestGroup
from tests.factories import make_group, make_manifest

pytestmark = pytest.mark.django_db


def test_each_is_counted_up_to_the_bound_in_one_statement():
    for number in range(3):
        make_manifest(f"100%-{number}")
    rows = {
        "all": Manifest.objects.order_by("external_id"),
        "named": Manifest.objects.filter(external_id__startswith="100%-1"),
        "groups": ManifestGroup.objects.all(),
        "none": Manifest.objects.none(),
    }
    with CaptureQueriesContext(connection) as asked:
        assert count_each(rows, limit=2) == {"all": 2, "named": 1, "groups": 2, "none": 0}
    assert len(asked) == 1


def test_nothing_to_count_takes_no_statement():
    make_group()
    with CaptureQueriesContext(connection) as asked:
        assert count_each({"none": Manifest.objects.none()}, limit=2) == {"none": 0}
        assert count_each({}, limit=2) == {}
    assert not asked.captured_queries
