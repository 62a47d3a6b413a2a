"""Actions of an operator or a caller: trigger, cancel, enable, limit, prioritize, resolve, remove."""
