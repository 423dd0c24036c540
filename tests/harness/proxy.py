"""A TCP proxy with the faults of a network: silence, cut connections, answers that are lost."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 65_536


class Proxy:
    """Passes bytes on to a server on this machine, until it is told to do otherwise.

    - `silence` swallows them and closes nothing; `speak` goes on. What was swallowed is lost, as on
      a network that drops packets.
    - `silence_at` does so at the first request that holds this word; `silent` is set then.
    - `cut` closes every connection at once; new ones are passed on.
    - `lose_answers` lets the server do what it is asked, and cuts the connection in place of its
      answer: so often, each time that what is sent holds one of these words.
    """

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._speaks = threading.Event()
        self._speaks.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[_Link] = set()
        self.silent = threading.Event()
        self._last_word: bytes | None = None
        self._words: tuple[bytes, ...] = ()
        self._to_lose = 0
        self.lost = 0
        """Answers that were lost."""
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def silence(self) -> None:
        """From now on nothing gets through, and nothing is closed."""
        self._speaks.clear()
        self.silent.set()

    def silence_at(self, word: bytes) -> None:
        """Fall silent when somebody asks for this."""
        self._last_word = word

    def speak(self) -> None:
        """Pass on what comes from now on."""
        self._last_word = None
        self.silent.clear()
        self._speaks.set()

    def cut(self) -> None:
        """Close what is open now."""
        with self._lock:
            links, self._open = self._open, set()
        for link in links:
            link.close()

    def lose_answers(self, count: int, *words: bytes) -> None:
        """Lose the answers to the next so many requests with one of these words."""
        with self._lock:
            self._words, self._to_lose = words, count

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._to)
                except OSError:
                    # The server is down: so it is for who asked.
                    near.close()
                    continue
                link = _Link(near, far)
                with self._lock:
                    self._open.add(link)
                for run in (self._ask, self._answer):
                    threading.Thread(target=run, args=(link,), daemon=True).start()

    def _ask(self, link: _Link) -> None:
        with suppress(OSError):
            while data := link.near.recv(CHUNK_BYTES):
                if self._last_word is not None and self._last_word in data:
                    self.silence()
                if self._is_to_be_lost(data):
                    link.deaf.set()
                if self._speaks.is_set():
                    link.far.sendall(data)
        self._end(link, link.far)

    def _answer(self, link: _Link) -> None:
        with suppress(OSError):
            while data := link.far.recv(CHUNK_BYTES):
                if link.deaf.is_set():
                    self.lost += 1
                    link.close()
                    return
                if self._speaks.is_set():
                    link.near.sendall(data)
        self._end(link, link.near)

    def _is_to_be_lost(self, data: bytes) -> bool:
        with self._lock:
            if not self._to_lose or not any(word in data for word in self._words):
                return False
            self._to_lose -= 1
            return True

    def _end(self, link: _Link, other: socket.socket) -> None:
        if self._speaks.is_set():
            with suppress(OSError):
                other.shutdown(socket.SHUT_WR)


class _Link:
    """A connection of a client, and the one to the server that was opened for it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self.deaf = threading.Event()
        """Set when the next answer is to be lost."""

    def close(self) -> None:
        """Close both, also under a call in another thread."""
        for each in (self.near, self.far):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
