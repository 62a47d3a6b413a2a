"""Stages from a declaration in code to rows: declare, plan, seed."""
