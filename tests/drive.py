"""A workbench that begins at a fixed time with nothing declared, and short ways to look at rows."""

from chainsched.flow.declare import Schedules
from chainsched.models import Manifest, Metadata
from chainsched.testing import Workbench
from tests.factories import NOW


def new_bench() -> Workbench:
    return Workbench(NOW, declared=Schedules())


def executions_of(external_id: str) -> list[Metadata]:
    return list(Metadata.objects.filter(manifest_external_id=external_id).order_by("id"))


def manifest(external_id: str) -> Manifest:
    return Manifest.objects.select_related("state").get(external_id=external_id)
