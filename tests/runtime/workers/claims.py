"""Claims as a worker hands them to its runner."""

import uuid
from datetime import UTC, datetime

from chainsched.flow.run.claim import Claim

# The lease under which they are made.
PROCESS = 1


def claim(number, *, timeout=60, process_id=PROCESS):
    due = datetime(2026, 3, 1, tzinfo=UTC)
    names = ("job", uuid.uuid4(), "app.job")
    return Claim(number, process_id, None, *names, None, due, 1, "", timeout, None, None, None, "", "")
