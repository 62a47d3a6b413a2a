"""Stages that an operator or a caller starts: trigger, cancel, enable, limit, resolve, remove."""
