"""Signals about changes of executions and dead letters.

Each is sent once per row, after the transaction that wrote it has committed, in the process that wrote it: in a
scheduler or worker by a thread of its own, in the order of the commits; in others at once, by the thread that wrote it.
An exception in a receiver is logged by Django and changes nothing else; a slow receiver delays later signals.
No row is loaded for a signal without receivers.
"""

from __future__ import annotations

from django.dispatch import Signal

# Receivers get ``execution``, a Metadata row as it is after the commit. The first two are sent together for work that a
# worker takes for itself. An execution that is returned before its code began is removed without a signal; when its
# queue row is taken again, that is another execution with signals of its own.
execution_dispatched = Signal()
execution_started = Signal()
execution_ended = Signal()

# Receivers get ``dead_letter``, a DeadLetter row as it is after the commit.
dead_letter_created = Signal()
dead_letter_resolved = Signal()
