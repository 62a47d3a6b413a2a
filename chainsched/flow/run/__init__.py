"""Stages of a job from the alarm to its end: evaluate, enqueue, dispatch, execute, record."""
