"""Many ids as one parameter: the same rows as with ``__in``, in one text for any number."""

import pytest
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext

from chainsched.db.id_in import id_in
from chainsched.models import Manifest, ManifestState
from tests.factories import make_dependent, make_group, make_manifest

pytestmark = pytest.mark.django_db


@pytest.fixture
def ids():
    group = make_group()
    return [make_manifest(group=group).id for _ in range(3)]


def test_it_finds_what_in_would_find(ids):
    wanted = {ids[0], ids[2], 0, 2**62}
    assert set(Manifest.objects.filter(id_in(id=wanted)).values_list("id", flat=True)) == {ids[0], ids[2]}
    assert set(Manifest.objects.exclude(id_in(id=wanted)).values_list("id", flat=True)) == {ids[1]}
    assert ManifestState.objects.filter(id_in(manifest=wanted) | Q(manifest=ids[1])).count() == 3


def test_it_follows_relations(ids):
    dependent = make_dependent(Manifest.objects.get(id=ids[0]))
    assert Manifest.objects.filter(id_in(depends_on=ids)).get() == dependent
    assert Manifest.objects.filter(id_in(state=ids), id_in(id=[ids[1]])).get().id == ids[1]


def test_of_no_ids_nothing_is_asked(ids):
    with CaptureQueriesContext(connection) as captured:
        assert list(Manifest.objects.filter(id_in(id=[]))) == []
    assert len(captured) == 0
    assert Manifest.objects.exclude(id_in(id=[])).count() == len(ids)


def test_the_number_of_parameters_does_not_grow(ids):
    def parameters(number):
        return Manifest.objects.filter(id_in(id=range(number))).query.sql_with_params()[1]

    assert len(parameters(1)) == len(parameters(100_000)) == 1
