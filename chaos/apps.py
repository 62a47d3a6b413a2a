"""The app with the workflows of a chaos run."""

import os

from django.apps import AppConfig

WITHOUT = "CHAOS_WITHOUT"


class UnknownGuard(ValueError):
    """There is no guard of this name."""


class ChaosConfig(AppConfig):
    """Connects receivers of signals, and switches a guard off when the environment names one."""

    name = "chaos"

    def ready(self) -> None:
        """Connect the receivers, and switch the guard off, before anything runs."""
        from chaos import receivers  # noqa: PLC0415 - needs the apps to be loaded

        receivers.connect()
        if name := os.environ.get(WITHOUT):
            from chaos.guards import find_guard  # noqa: PLC0415 - needs the models to be loaded

            find_guard(name).switch_off()
