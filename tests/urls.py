"""The URLs of the test project: the admin, and the pages beside it."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("chainsched/", include("chainsched.urls"))]
