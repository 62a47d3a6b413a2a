"""The former name of ``chainsched.correlation``, which stays importable."""

from chainsched.correlation import CorrelationFilter, Scope, begin, current, headers, receive

__all__ = ["CorrelationFilter", "Scope", "begin", "current", "headers", "receive"]
