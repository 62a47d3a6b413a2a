"""Operator action: run a manifest again in the run of one of its executions, and go on from there.

Reads:  the execution, its runs, and the open item of its manifest.
Writes: through enqueue a queue row.
Next:   dispatch; what follows from the run counts as late in the joins that were decided before.
"""

from __future__ import annotations

from datetime import datetime

from chainsched.domain.due import OpenItem
from chainsched.domain.inputs import readable
from chainsched.domain.results import Answer
from chainsched.domain.states import Source
from chainsched.exceptions import InvalidInput
from chainsched.flow.run.enqueue import enqueue
from chainsched.flow.run.requests import Lineage, QueueRequest
from chainsched.flow.run.runs import rejoin_runs
from chainsched.flow.run.tokens import TokenLedger
from chainsched.flow.transactions import transact
from chainsched.models import ManifestState, Metadata
from chainsched.models.manifest_facts import load_open_items


def run_from_here(execution: Metadata, *, now: datetime) -> Answer:
    """Queue a run with the input, parent and root that an execution had, in the same run of the graph.

    Refused while its manifest has an open item; raises InvalidInput if no run of the graph is left to go on in.
    """
    manifest_id = execution.manifest_id or 0
    with transact():
        ManifestState.objects.lock([manifest_id])
        open_item = load_open_items([manifest_id]).get(manifest_id)
        if open_item is not None:
            return Answer.AWAITS_DEAD_LETTER if open_item is OpenItem.DEAD_LETTER else Answer.BUSY
        ledger = TokenLedger()
        item = rejoin_runs({execution.id: execution}, ledger=ledger).get(execution.id)
        if item is None:
            raise InvalidInput(
                f"Execution {execution.id} belongs to no run of the graph, or its run was cancelled. "
                "Use run_again(), which begins a run of its own."
            )
        request = QueueRequest(
            manifest_id,
            Source.TRIGGER,
            execution.scheduled_for,
            input=readable(execution.input),
            lineage=Lineage.of(execution),
            item=item,
        )
        opened = enqueue([request], now=now, ledger=ledger)
        ledger.write()
    return Answer.QUEUED if opened else Answer.BUSY
