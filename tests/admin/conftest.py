"""The world that most tests of the admin look at."""

import pytest
from django.test import Client

from chainsched.models import Manifest
from tests.admin.world import client_of, make_world


@pytest.fixture
def world(db: None) -> Manifest:
    return make_world()


@pytest.fixture
def superuser(db: None) -> Client:
    return client_of("superuser")


@pytest.fixture
def viewer(db: None) -> Client:
    return client_of("viewer")


@pytest.fixture
def operator(db: None) -> Client:
    return client_of("operator")


@pytest.fixture
def manager(db: None) -> Client:
    return client_of("manager")
