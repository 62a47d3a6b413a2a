"""The commands that keep running, and those that answer."""
