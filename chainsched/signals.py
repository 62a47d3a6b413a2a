"""Signals about changes of executions and dead letters.

Each is sent once per row, after the transaction that wrote it has committed, in the process that wrote it: in a
scheduler or worker by a thread of its own, in the order of the commits; in others at once, by the thread that wrote it.
An exception in a receiver is logged by Django and changes nothing else; a slow receiver delays later signals.
No row is loaded for a signal without receivers.
"""

from __future__ import annotations

from django.dispatch import Signal

# Receivers get ``execution``, a Metadata row as it is after the commit. An execution that a process claimed and then
# released without having begun it is started again, with another signal, by the next process that claims it.
execution_dispatched = Signal()
execution_started = Signal()
execution_ended = Signal()

# Receivers get ``dead_letter``, a DeadLetter row as it is after the commit.
dead_letter_created = Signal()
dead_letter_resolved = Signal()
