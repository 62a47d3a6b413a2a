"""The command of this project."""
