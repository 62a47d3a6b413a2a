"""The app: registers checks, discovers workflows and schedules, seeds after migrate. Starting it makes no query."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from django.apps import AppConfig, apps
from django.core import checks
from django.db import DatabaseError
from django.db.models.signals import post_migrate
from django.utils.module_loading import module_has_submodule

from chainsched.conf import get_config
from chainsched.exceptions import ChainschedError

logger = logging.getLogger(__name__)

DISCOVERED = ("workflows", "schedules")


class ChainschedConfig(AppConfig):
    """The chainsched app."""

    name = "chainsched"
    verbose_name = "Job orchestration"
    default_auto_field = "django.db.models.BigAutoField"

    # Modules that failed to import, with the cause; reported by the checks and refused by run_scheduler.
    undiscovered: dict[str, Exception]

    def ready(self) -> None:
        """Register checks, discover the declarations of the installed apps, and connect to ``post_migrate``."""
        from chainsched import checks as chainsched_checks  # noqa: PLC0415 - needs the models to be loaded

        get_config.cache_clear()  # read before the models were loaded, it has not been checked in full
        checks.register(chainsched_checks.check_configuration)
        checks.register(chainsched_checks.check_declarations)
        checks.register(chainsched_checks.check_inputs)
        checks.register(chainsched_checks.check_database, checks.Tags.database)
        self.undiscovered = {}
        self.discover()
        post_migrate.connect(_seed_after_migrate, sender=self, dispatch_uid="chainsched.seed")

    def discover(self) -> None:
        """Import ``workflows`` and ``schedules`` of every installed app; a failure is kept, with its module's name."""
        for config in apps.get_app_configs():
            for name in DISCOVERED:
                if config.module is not None and module_has_submodule(config.module, name):
                    self._import(config.module, name)

    def _import(self, package: ModuleType, name: str) -> None:
        from importlib import import_module  # noqa: PLC0415

        module = f"{package.__name__}.{name}"
        try:
            import_module(module)
        except Exception as error:  # noqa: BLE001 - any error of a project's module is kept and reported
            self.undiscovered[module] = error


def _seed_after_migrate(**kwargs: Any) -> None:
    from chainsched.runtime.process.startup import seed_after_migrate  # noqa: PLC0415 - needs the models to be loaded

    try:
        seed_after_migrate(using=kwargs["using"], plan=kwargs.get("plan", []))
    except (ChainschedError, DatabaseError) as error:
        logger.warning("Declared schedules were not seeded after migrate: %s", error)
