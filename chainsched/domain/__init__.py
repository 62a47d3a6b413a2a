"""Rules: pure decisions and values, without database, clock, settings or logging."""
