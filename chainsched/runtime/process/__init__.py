"""A running process: how it starts, keeps its lease, listens and stops."""
