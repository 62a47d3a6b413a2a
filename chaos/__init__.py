"""Real processes on a real PostgreSQL, faults on purpose, and a checker that says what they broke: `make chaos`."""
