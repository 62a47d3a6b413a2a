"""Django's command line for this project. It fails if the command has loaded the admin."""

import os
import sys

from django.core.management import execute_from_command_line

from tests.headless import admin_modules

if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.headless.settings"
    try:
        execute_from_command_line(sys.argv)
    finally:
        loaded = admin_modules()
        assert not loaded, f"{sys.argv[1:]} loaded {loaded[:3]} and more"
