"""Loops: what keeps turning, and the processes it turns in."""
