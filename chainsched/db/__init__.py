"""How chainsched speaks to PostgreSQL and SQLite: bulk writes, locks, clock, notifications."""
