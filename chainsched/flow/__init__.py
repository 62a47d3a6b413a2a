"""Stages: one verb a file, and the only home of transactions."""
