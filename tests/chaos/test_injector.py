"""The injector of a chaos run: it waits for no reply of a server that it has paused itself."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from chaos.fleet import Fleet
from chaos.injector import Ending, Injector
from chaos.servers import Postgres


class Server:
    """Stands for the database server: paused or not."""

    def __init__(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def injector(server: Server) -> Injector:
    return Injector(cast("Fleet", None), cast("Postgres", server), random.Random(0), [])  # noqa: S311 - not for secrets


def asks(server: Server, log: list[str]) -> Any:
    """The end of a fault that asks the server."""

    def ask() -> None:
        assert not server.is_paused, "it would wait for ever"
        log.append("asked")

    return ask


def test_a_fault_that_needs_the_server_ends_when_the_server_is_back(injector, server):
    log: list[str] = []
    resumption = Ending(float("inf"), server.resume)
    injector._endings = [Ending(0.0, asks(server, log), needs_database=True), resumption]
    injector.turn(elapsed=0.0)
    assert log == []
    injector._endings[1] = resumption._replace(at=0.0)
    injector.turn(elapsed=0.0)
    injector.turn(elapsed=0.0)
    assert log == ["asked"]
    assert injector.is_done


def test_at_the_end_of_a_run_the_server_is_resumed_first(injector, server):
    log: list[str] = []
    injector._endings = [
        Ending(float("inf"), server.resume),
        Ending(float("inf"), asks(server, log), needs_database=True),
    ]
    injector.end_all()
    assert log == ["asked"]
    assert injector.is_done
