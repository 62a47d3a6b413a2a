"""Connects the receiver."""

import os
import time
from pathlib import Path
from typing import Any

from django.apps import AppConfig

VARIABLE = "CHAINSCHED_TEST_HEARD"


class ListeningConfig(AppConfig):
    name = "tests.listeningapp"

    def ready(self) -> None:
        from chainsched.signals import execution_ended  # noqa: PLC0415 - as in a project

        execution_ended.connect(hear)


def hear(execution: Any, **_: Any) -> None:
    """Write a line, and return once there is the file that lets it."""
    path = Path(os.environ[VARIABLE])
    with path.open("a") as file:
        file.write(f"{execution.manifest_external_id} {execution.state}\n")
    while not released(path).exists():
        time.sleep(0.05)


def released(path: Path) -> Path:
    """The file that lets the receivers return."""
    return path.with_suffix(".released")
