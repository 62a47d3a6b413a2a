"""What the next version of the code can run, and the present one cannot."""

from chainsched import workflow


@workflow(name="nextapp.greet")
def greet() -> str:
    return "hello"
