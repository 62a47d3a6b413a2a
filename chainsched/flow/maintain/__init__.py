"""Maintenance of the rows: close lost executions, take back stranded ones, remove old rows, summarise, check."""
