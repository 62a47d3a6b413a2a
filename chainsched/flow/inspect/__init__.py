"""Questions about the rows: why a manifest waits, what caused an execution, whether all is well. They write nothing."""
