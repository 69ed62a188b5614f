"""The retrying client against servers that misbehave."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

import httpx

import semel

RUNNING = b"HTTP/1.1 409 Scripted\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\n{}"
FAILURE = b"HTTP/1.1 503 Scripted\r\nContent-Length: 2\r\n\r\n{}"
SUCCESS = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answers each request, on a connection of its own, as the next step says."""

    def __init__(self, *steps: Callable[[socket.socket], None]) -> None:
        self.requests: list[bytes] = []
        self._steps = iter(steps)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for step in self._steps:
            client, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(client, step), daemon=True).start()

    def _answer(self, client: socket.socket, step: Callable[[socket.socket], None]) -> None:
        with client:
            self.requests.append(client.recv(65536))
            step(client)

    def close(self) -> None:
        self._listener.close()


def sends(answer: bytes) -> Callable[[socket.socket], None]:
    return lambda client: client.sendall(answer)


def stalls(client: socket.socket) -> None:
    client.recv(1)


def drips(client: socket.socket) -> None:
    """A byte every 0.2 s, for longer than any timeout here."""
    try:
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        for _ in range(100):
            client.sendall(b" ")
            time.sleep(0.2)
    except OSError:
        pass


class Sync(unittest.TestCase):
    def post(self, url: str, **options: Any) -> httpx.Response:
        with semel.Client(**options) as client:
            return client.post(url, content=b"{}")

    def serve(self, *steps: Callable[[socket.socket], None]) -> Server:
        server = Server(*steps)
        self.addCleanup(server.close)
        return server

    def test_requests_by_a_proxy_are_retried_with_one_key(self) -> None:
        proxy = self.serve(sends(FAILURE), sends(SUCCESS))
        answer = self.post("http://upstream.invalid/orders", proxy=proxy.url)
        self.assertEqual((answer.status_code, len(proxy.requests)), (200, 2))
        keys = [header_of(request, b"idempotency-key") for request in proxy.requests]
        self.assertEqual((keys[0], len(keys[0])), (keys[1], 36))

    def test_options_of_the_connection_are_not_ignored(self) -> None:
        with self.assertRaises(OSError):
            self.post("https://127.0.0.1:9/", verify="/nonexistent")
        for name in ("transport", "mounts"):
            with self.assertRaises(TypeError):
                self.post("http://127.0.0.1:9/", **{name: None})

    def test_an_answer_that_drips_is_an_attempt_that_timed_out(self) -> None:
        server = self.serve(drips, sends(SUCCESS))
        began = time.monotonic()
        answer = self.post(server.url, timeout=1)
        self.assertEqual((answer.status_code, len(server.requests)), (200, 2))
        self.assertLess(time.monotonic() - began, 8)

    def test_the_deadline_leaves_the_answer_that_the_operation_runs(self) -> None:
        server = self.serve(sends(RUNNING), stalls)
        answer = self.post(server.url, policy=semel.SEMEL.with_deadline(2))
        self.assertEqual((answer.status_code, len(server.requests)), (409, 2))


class Async(Sync):
    def post(self, url: str, **options: Any) -> httpx.Response:
        async def post() -> httpx.Response:
            async with semel.AsyncClient(**options) as client:
                return await client.post(url, content=b"{}")

        return asyncio.run(post())


def header_of(request: bytes, name: bytes) -> bytes:
    lines = request.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    headers = dict(line.split(b": ", 1) for line in lines)
    return next(value for key, value in headers.items() if key.lower() == name)
