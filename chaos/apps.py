"""The app whose workflows the processes of a chaos run know."""

import os

from django.apps import AppConfig

WITHOUT = "CHAOS_WITHOUT"


class UnknownGuard(ValueError):
    """Nothing of this name can be switched off."""


class ChaosConfig(AppConfig):
    """Switches a guard off in this process when the environment names one."""

    name = "chaos"

    def ready(self) -> None:
        """Take the guard away before anything runs."""
        if name := os.environ.get(WITHOUT):
            from chaos.guards import find_guard  # noqa: PLC0415 - needs the models to be loaded

            find_guard(name).switch_off()
