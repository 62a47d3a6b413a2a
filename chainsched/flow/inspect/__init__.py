"""Inspection of the rows: why a manifest waits, the causes of an execution, health. Nothing is written."""
