"""An app whose receiver does not return until a file says so, for processes that tests start with it."""
