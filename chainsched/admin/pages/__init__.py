"""The pages, one file for each model or view."""
