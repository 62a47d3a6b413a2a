"""Access to PostgreSQL and SQLite: bulk writes, locks, clock, notifications."""
