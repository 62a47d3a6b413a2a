"""Where an SQLite database is, and on what kind of file system."""

from contextlib import closing
from pathlib import Path

import pytest
from django.db import connection
from django.db.backends.sqlite3.base import DatabaseWrapper

from chainsched.db import sqlite_file
from chainsched.db.sqlite_file import database_file, network_file_system

MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/root rw
40 22 0:50 / /srv/nfs rw,relatime shared:9 - nfs4 10.0.0.1:/export rw,vers=4.2
41 40 0:51 / /srv/nfs/local rw,relatime - xfs /dev/sdb rw
42 22 0:52 / /srv/with\040space rw,relatime - fuse.sshfs me@there:/ rw
43 22 0:53 / /srv/covered rw,relatime - cifs //there/share rw
44 22 0:54 / /srv/covered rw,relatime - tmpfs tmpfs rw
45 22 0:55 / /srv/drive rw - 9p C:\134 rw
"""


@pytest.fixture
def mounts(monkeypatch, tmp_path):
    monkeypatch.setattr(sqlite_file, "MOUNTS", tmp_path / "mountinfo")
    sqlite_file.MOUNTS.write_text(MOUNTS)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/db.sqlite3", None),
        ("/srv/nfs/db.sqlite3", "nfs4"),
        ("/srv/nfs/deep/down/db.sqlite3", "nfs4"),
        ("/srv/nfs-not/db.sqlite3", None),
        ("/srv/nfs/local/db.sqlite3", None),
        ("/srv/with space/db.sqlite3", "fuse.sshfs"),
        ("/srv/covered/db.sqlite3", None),
        ("/srv/drive/db.sqlite3", "9p"),
    ],
)
def test_the_deepest_mount_above_a_file_says_whether_it_is_on_a_network(mounts, path, kind):
    assert network_file_system(Path(path)) == kind


def test_where_nobody_can_tell_nothing_is_on_a_network(monkeypatch, tmp_path):
    monkeypatch.setattr(sqlite_file, "MOUNTS", tmp_path / "missing")
    assert network_file_system(Path("/srv/nfs/db.sqlite3")) is None


def file_of(name):
    database = DatabaseWrapper({**connection.settings_dict, "NAME": name, "OPTIONS": {}})
    # Past Django, which leaves databases in memory open.
    with database.cursor(), closing(database.connection):
        return database_file(database)


@pytest.mark.django_db
@pytest.mark.parametrize("name", [":memory:", "file:shared?mode=memory&cache=shared"])
def test_a_database_in_memory_has_no_file(name):
    assert file_of(name) is None


@pytest.mark.django_db
def test_a_file_is_found_past_links_and_by_address(tmp_path):
    real = tmp_path / "real.sqlite3"
    real.touch()
    (tmp_path / "link.sqlite3").symlink_to(real)
    for name in (tmp_path / "link.sqlite3", f"file:{tmp_path / 'link.sqlite3'}?mode=rw"):
        assert file_of(name) == real.resolve()


@pytest.mark.postgres
@pytest.mark.django_db
def test_postgresql_has_no_file_of_ours():
    assert database_file(connection) is None
