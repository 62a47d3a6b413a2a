"""The file of an SQLite database, and the file system that it is on."""

from __future__ import annotations

import os
import re
from pathlib import Path

from django.db.backends.base.base import BaseDatabaseWrapper

# The file systems that Linux has mounted, one line each.
MOUNTS = Path("/proc/self/mountinfo")
# Hosts that share a file over these see neither each other's locks nor the memory that WAL is kept in.
OVER_NETWORKS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "sshfs", "glusterfs", "lustre", "ceph", "afs", "beegfs"}
)
FUSE = "fuse."


def database_file(connection: BaseDatabaseWrapper) -> Path | None:
    """The path of the database file with all links resolved; None if it is in memory, or no SQLite."""
    if connection.vendor != "sqlite":
        return None
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA database_list")
        files = {name: file for _, name, file in cursor.fetchall()}
    return Path(os.path.realpath(files["main"])) if files.get("main") else None


def network_file_system(path: Path) -> str | None:
    """The kind of network file system that the path is on; None if it is on a local one or this is unknown."""
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return None
    kind = _kind_of_mount(path, mounts=mounts)
    return kind if kind.removeprefix(FUSE) in OVER_NETWORKS else None


def _kind_of_mount(path: Path, *, mounts: str) -> str:
    """The file system of the deepest mount above the path; of several at one place the last covers the others."""
    depth, kind = 0, ""
    for line in mounts.splitlines():
        mount, _, rest = line.partition(" - ")
        place = Path(_unescape(mount.split()[4]))
        if path.is_relative_to(place) and len(place.parts) >= depth:
            depth, kind = len(place.parts), rest.split()[0]
    return kind


def _unescape(text: str) -> str:
    """Decode the octal numbers as which the kernel writes spaces and similar characters."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
