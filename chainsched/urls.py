"""The pages beside the admin: include them where probes can reach them."""

from __future__ import annotations

from django.urls import path

from chainsched import views

app_name = "chainsched"

urlpatterns = [path("health/", views.health, name="health")]
