"""An example of a project that uses chainsched: a small ETL, and a demo that runs it."""
