"""Claims as a worker hands them to its runner."""

import uuid
from datetime import UTC, datetime

from chainsched.domain.run_context import Claim

# The lease under which they are made.
PROCESS = 1


def claim(number, *, timeout=60, process_id=PROCESS):
    return Claim(
        execution_id=number,
        process_id=process_id,
        manifest_id=None,
        external_id="job",
        correlation_id=uuid.uuid4(),
        workflow="app.job",
        input=None,
        scheduled_for=datetime(2026, 3, 1, tzinfo=UTC),
        attempt=1,
        cron_expression="",
        timeout_seconds=timeout,
        parent_manifest_id=None,
        parent_execution_id=None,
        root_execution_id=None,
        causation_id="",
        root_correlation_id="",
    )
