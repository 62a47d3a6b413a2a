"""Stages, one verb in each file; only here are transactions opened."""
