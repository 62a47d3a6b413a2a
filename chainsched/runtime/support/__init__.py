"""Small modules that loops and processes share."""
