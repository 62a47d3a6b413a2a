"""Stages that keep the rows in order: close, take back, remove, summarise, check."""
