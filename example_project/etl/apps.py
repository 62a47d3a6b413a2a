"""The ETL application."""

from django.apps import AppConfig


class EtlConfig(AppConfig):
    """Holds ``workflows.py`` and ``schedules.py``, which chainsched discovers."""

    name = "example_project.etl"
    verbose_name = "ETL"
