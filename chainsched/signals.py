"""Signals for the life of executions and dead letters.

Each is sent for each row, after the transaction that wrote it has committed, in the process and thread that
wrote it. A receiver that fails is logged by Django and harms nothing; one that is slow delays the loop it is called
from. Nothing is loaded for a signal that nobody listens to.
"""

from __future__ import annotations

from django.dispatch import Signal

# Receivers get ``execution``, a Metadata row as it is after the commit. What a process took and gave back without
# having begun it starts again with the next one that takes it.
execution_dispatched = Signal()
execution_started = Signal()
execution_ended = Signal()

# Receivers get ``dead_letter``, a DeadLetter row as it is after the commit.
dead_letter_created = Signal()
dead_letter_resolved = Signal()
