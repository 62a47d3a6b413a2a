"""The long-running side: loops, workers, and the processes that they run in."""
