"""A project without django.contrib.admin. It imports no other tests: a copy of it runs with the built wheel."""

import sys


def admin_modules() -> list[str]:
    """The modules of Django's admin and of chainsched's pages that this process has loaded."""
    return [name for name in sys.modules if name.startswith(("django.contrib.admin", "chainsched.admin"))]
