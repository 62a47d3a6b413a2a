"""Drawings on the pages, computed as plain values for templates."""
