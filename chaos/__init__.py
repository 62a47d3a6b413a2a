"""Real processes on a real PostgreSQL, faults on purpose, and a checker that lists violations: `make chaos`."""
