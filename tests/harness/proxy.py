"""A TCP proxy that can fall silent: connections stay open, and no byte gets through."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 65_536


class SilentProxy:
    """Passes bytes on to a server on this machine; `silence` swallows them, `speak` goes on.

    What was swallowed is lost, as on a network that drops packets.
    """

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._speaks = threading.Event()
        self._speaks.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for each in self._open:
            each.close()

    def silence(self) -> None:
        """From now on nothing gets through, and nothing is closed."""
        self._speaks.clear()

    def speak(self) -> None:
        """Pass on what comes from now on."""
        self._speaks.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if self._speaks.is_set():
                    target.sendall(data)
        if self._speaks.is_set():
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)
