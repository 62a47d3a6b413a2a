"""The loops of a process and the poller that turns them."""
