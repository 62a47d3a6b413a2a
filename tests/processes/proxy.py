"""A wire to PostgreSQL that a test can cut: it passes nothing on, goes silent for ever, or loses answers or notices."""

import contextlib
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from django.db import connection

CHUNK = 65536
# Of a message of the server: its letter and its length; the letter of a notice.
HEAD, NOTICE = 5, b"A"
# A client's request to prepare a statement: its name and its text. Later requests only name it.
PREPARED = re.compile(rb"(_pg3_\d+)\x00([A-Z(][^\x00]+)")


@dataclass(eq=False)
class _Line:
    """One client and its session."""

    client: socket.socket
    server: socket.socket
    said: bytes = b""
    unread: bytes = b""
    # The statements that the session knows by a name.
    prepared: dict[bytes, bytes] = field(default_factory=dict)
    is_silent: bool = False
    loses_answer: bool = False

    def hang_up(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass(eq=False)
class Proxy:
    """Passes everything on until told otherwise; ``directory`` is that of the socket to connect to."""

    directory: Path
    lost_answers: int = 0
    swallows_notices: bool = False
    swallowed_notices: int = 0
    _lose_after: bytes | None = None
    _is_cut: bool = False
    _lines: list[_Line] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def cut(self) -> None:
        """Pass nothing on any more, and let nobody notice."""
        with self._changed:
            self._is_cut = True

    def mend(self) -> None:
        """Pass on again, beginning with what was said meanwhile."""
        with self._changed:
            self._is_cut = False
            self._changed.notify_all()

    def forget(self) -> None:
        """Leave every line that is open now silent for ever; new ones work."""
        for line in self._lines:
            line.is_silent = True

    def lose_commit_after(self, statement: bytes) -> None:
        """Lose the answer to the next commit of a transaction in which this was said, and the line with it."""
        self._lose_after = statement

    def serve(self, listener: socket.socket) -> None:
        """Accept clients until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(_server_socket())
                line = _Line(client, server)
                self._lines.append(line)
                for ends in ((client, server), (server, client)):
                    self._threads.append(threading.Thread(target=self._pass_on, args=(line, *ends), daemon=True))
                    self._threads[-1].start()

    def close(self) -> None:
        self.mend()
        for line in self._lines:
            line.hang_up()
        for thread in self._threads:
            thread.join()
        for line in self._lines:
            line.client.close()
            line.server.close()

    def _pass_on(self, line: _Line, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                with self._changed:
                    self._changed.wait_for(lambda: not self._is_cut)
                if source is line.client:
                    self._listen_for_commit(line, data)
                elif line.loses_answer:
                    self.lost_answers += 1
                    break
                else:
                    data = self._without_notices(line, data)
                if not line.is_silent:
                    target.sendall(data)
        if not line.is_silent:
            line.hang_up()

    def _without_notices(self, line: _Line, data: bytes) -> bytes:
        """The whole messages of the server in what it has said so far, without the notices while they are swallowed.

        A message is a letter and its length, which counts itself, and then so much less.
        """
        said, passed = line.unread + data, b""
        while len(said) >= HEAD and len(said) > (length := int.from_bytes(said[1:HEAD])):
            message, said = said[: length + 1], said[length + 1 :]
            if message[:1] == NOTICE and self.swallows_notices:
                self.swallowed_notices += 1
            else:
                passed += message
        line.unread = said
        return passed

    def _listen_for_commit(self, line: _Line, data: bytes) -> None:
        line.said += data
        if b"COMMIT" in data or b"ROLLBACK" in data:
            said, line.said = line.said, b""
            line.prepared.update(PREPARED.findall(said))
            texts = [said, *(text for name, text in line.prepared.items() if b"\0" + name + b"\0" in said)]
            if b"COMMIT" in data and self._lose_after is not None and any(self._lose_after in text for text in texts):
                self._lose_after, line.loses_answer = None, True


@contextmanager
def proxy(*, swallows_notices: bool = False) -> Iterator[Proxy]:
    """A wire to the test's database."""
    directory = Path(tempfile.mkdtemp(prefix="chainsched-proxy-", dir="/tmp"))
    wire = Proxy(directory, swallows_notices=swallows_notices)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(directory / _socket_name()))
            listener.listen()
            server = threading.Thread(target=wire.serve, args=(listener,), daemon=True)
            server.start()
            try:
                yield wire
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                server.join()
                wire.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _server_socket() -> str:
    return str(Path(connection.settings_dict["HOST"]) / _socket_name())


def _socket_name() -> str:
    return f".s.PGSQL.{connection.settings_dict['PORT'] or 5432}"
