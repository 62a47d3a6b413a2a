"""The base class of the mixins for a type checker, and the ModelAdmin that they are combined with.

ModelAdmin is generic for type checkers only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin

if TYPE_CHECKING:
    Mixin = admin.ModelAdmin[Any]
    ModelAdmin = admin.ModelAdmin[Any]
else:
    Mixin = object
    ModelAdmin = admin.ModelAdmin
