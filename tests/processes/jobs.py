"""Short ways to let jobs come and to see how far they are, for tests that start real processes."""

from chainsched import ManifestItem
from chainsched.domain.states import ExecutionState
from chainsched.models import Manifest, ManifestGroup, Metadata

SHORT_LEASE = {"HEARTBEAT_INTERVAL": 0.5, "PROCESS_EXPIRY": 3, "REAP_INTERVAL": 0.5, "RETRY_DELAY": 1}


def trigger(workflow, number=1, input=None):
    """Let so many jobs come at once."""
    items = [ManifestItem(str(index), input) for index in range(number)]
    Manifest.objects.schedule_many(workflow, workflow.__name__, items, None)
    ManifestGroup.objects.get(name=workflow.__name__).trigger()


def ended(state=ExecutionState.COMPLETED):
    return Metadata.objects.filter(state=state).count()


def running():
    """How many jobs run, of workflows that report progress at their beginning: taken rows need not have begun."""
    return Metadata.objects.in_progress().filter(progress__isnull=False).count()
