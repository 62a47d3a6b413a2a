"""The template tags of this app."""
