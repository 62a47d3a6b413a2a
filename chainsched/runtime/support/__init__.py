"""Small aids that loops and processes share."""
