"""The job that Procrastinate runs in the comparison."""

from procrastinate.contrib.django import app


@app.task(queue="bench")
async def do_nothing() -> None:
    """Nothing; ``async``, because Procrastinate moves other functions to threads. Plain functions were not measured."""
