"""A transaction of a user that triggers manifests and stays open, as a view that has more to do before it commits."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from django.db import InterfaceError, OperationalError, connections, transaction

from chainsched.exceptions import ChainschedError
from chainsched.models import Manifest

# No hold outlasts a harness that fails.
LONGEST = 60.0


class Hold:
    """Holds the states of these manifests from ``start`` to ``release``, and leaves nothing behind."""

    def __init__(self, manifests: Sequence[str]) -> None:
        self._manifests = manifests
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-hold", daemon=True)

    def start(self) -> None:
        """Begin; a database that is away, or rows that are held already, end it."""
        self._thread.start()

    def release(self) -> None:
        """Roll the transaction back, so that the triggers change nothing."""
        self._released.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with transaction.atomic():
                for manifest in Manifest.objects.filter(external_id__in=self._manifests).order_by("id"):
                    manifest.trigger()
                self._released.wait(LONGEST)
                transaction.set_rollback(True)
        except (OperationalError, InterfaceError, ChainschedError):
            pass
        finally:
            connections.close_all()
