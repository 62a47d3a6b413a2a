"""The dependency graph: loaded from rows, collapsed, laid out and exported. It needs no admin."""
