"""The app with the workflows of a chaos run."""

import os

from django.apps import AppConfig

WITHOUT = "CHAOS_WITHOUT"


class UnknownGuard(ValueError):
    """There is no guard of this name."""


class ChaosConfig(AppConfig):
    """Switches a guard off in this process when the environment names one."""

    name = "chaos"

    def ready(self) -> None:
        """Switch the guard off before anything runs."""
        if name := os.environ.get(WITHOUT):
            from chaos.guards import find_guard  # noqa: PLC0415 - needs the models to be loaded

            find_guard(name).switch_off()
