"""Operations that run once, against a running server: ``SEMEL_TEST_API`` is its address,
``SEMEL_TEST_TOKEN`` a token for the scope ``tests``."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import unittest
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import httpx

import semel

API = os.environ.get("SEMEL_TEST_API")
TOKEN = os.environ.get("SEMEL_TEST_TOKEN")


def new_key() -> str:
    return f"order-{uuid.uuid4()}"


class Counter:
    """An operation that counts how often it runs."""

    def __init__(self, *outcomes: Callable[[], Any]) -> None:
        self.runs = 0
        self._outcomes = outcomes
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        with self._lock:
            outcome = self._outcomes[min(self.runs, len(self._outcomes) - 1)]
            self.runs += 1
        return outcome()


def raising(error: Exception) -> Callable[[], Any]:
    def run() -> Any:
        raise error

    return run


class Watched(httpx.HTTPTransport):
    """Counts the requests that are sent and the successes that arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.succeeded = threading.Semaphore(0), threading.Semaphore(0)
        self.silenced, self._silent = threading.Event(), b"nothing"

    def silence(self, claim: str) -> None:
        """Requests with this claim get no answer."""
        self._silent = claim.encode()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.release()
        if self._silent in request.read():
            self.silenced.set()
            time.sleep(request.extensions["timeout"]["read"])
            raise httpx.ReadTimeout("silence")
        response = super().handle_request(request)
        if response.status_code == 200:
            self.succeeded.release()
        return response


@unittest.skipUnless(API, "SEMEL_TEST_API is not set")
class Once(unittest.TestCase):
    def setUp(self) -> None:
        self.semel = semel.Semel(API or "", scope="tests", token=TOKEN)
        self.addCleanup(self.semel.close)

    def test_a_function_runs_once_and_its_result_is_replayed(self) -> None:
        charge, key = Counter(lambda: {"receipt": 9007199254740993, "note": "Zoë"}), new_key()
        first = self.semel.once(key, charge, payload={"amount": 100})
        again = self.semel.once(key, charge, payload={"amount": 1e2})
        self.assertEqual((first, charge.runs), (again, 1))

    def test_a_block_runs_once(self) -> None:
        key, runs = new_key(), 0
        for _ in range(2):
            with self.semel.once(key) as run:
                if not run.replayed:
                    runs += 1
                    run.result = b"\x00\xff"
            self.assertEqual(run.result, b"\x00\xff")
        self.assertEqual(runs, 1)

    def test_a_decorated_function_runs_once_for_each_key(self) -> None:
        ran: list[str] = []

        @self.semel.once(lambda order: order)
        def charge(order: str) -> int:
            ran.append(order)
            return len(ran)

        first, second = new_key(), new_key()
        self.assertEqual([charge(first), charge(first), charge(second)], [1, 1, 2])
        self.assertEqual(ran, [first, second])

    def test_retry_releases_the_key(self) -> None:
        charge, key = Counter(raising(semel.Retry("no stock")), lambda: "done"), new_key()
        with self.assertRaises(semel.Retry):
            self.semel.once(key, charge)
        self.assertEqual(self.semel.once(key, charge), "done")
        self.assertEqual(charge.runs, 2)

    def test_a_refusal_is_recorded(self) -> None:
        charge, key = Counter(raising(semel.Refused({"why": "card declined"}))), new_key()
        for _ in range(2):
            with self.assertRaises(semel.Refused) as raised:
                self.semel.once(key, charge)
            self.assertEqual(raised.exception.value, {"why": "card declined"})
        self.assertEqual(charge.runs, 1)

    def test_an_exception_holds_the_key(self) -> None:
        charge, key = Counter(raising(ConnectionResetError())), new_key()
        with self.assertRaises(ConnectionResetError):
            self.semel.once(key, charge)
        with self.assertRaises(semel.OutcomeUnknown):
            self.semel.once(key, charge)
        self.assertEqual(charge.runs, 1)

    def test_a_result_without_json_holds_the_key(self) -> None:
        for result in (Decimal("9.99"), "\ud800", float("nan")):
            charge, key = Counter(lambda: result), new_key()
            with self.assertRaises((TypeError, ValueError)):
                self.semel.once(key, charge, on_unknown="rerun")
            with self.assertRaises(semel.OutcomeUnknown):
                self.semel.once(key, charge, on_unknown="rerun")
            self.assertEqual(charge.runs, 1)

    def test_a_consumer_reruns_with_a_rising_fence(self) -> None:
        key, fences = new_key(), []
        for attempt in (1, 2):
            claim = self.semel.claim(
                key, options=semel.Options(scope="tests", on_unknown="rerun")
            )
            assert isinstance(claim, semel.Claim)
            self.assertEqual(claim.attempt, attempt)
            fences.append(claim.fence)
            claim.abandon(semel.Options(scope="tests", on_unknown="rerun"), ValueError())
        self.assertLess(fences[0], fences[1])

    def test_another_payload_is_refused(self) -> None:
        charge, key = Counter(lambda: 1), new_key()
        self.semel.once(key, charge, payload={"amount": 1})
        with self.assertRaises(semel.KeyReused):
            self.semel.once(key, charge, payload={"amount": 2})
        self.assertEqual(charge.runs, 1)

    def test_a_lease_is_renewed_while_the_operation_runs(self) -> None:
        key = new_key()
        with self.semel.once(key, lease="2s") as run:
            assert run.claim is not None
            end = time.monotonic() + 5
            while time.monotonic() < end:
                self.assertFalse(run.claim.lost)
                time.sleep(0.05)
            run.result = "slow"
        self.assertEqual(self.semel.once(key, lambda: "again"), "slow")

    def test_a_claim_that_another_owner_took_is_lost(self) -> None:
        key = new_key()
        chosen = semel.Options(scope="tests", lease="200ms", on_unknown="rerun")
        claim = self.semel.claim(key, options=chosen)
        assert isinstance(claim, semel.Claim)
        # A process that stops: nothing renews.
        self.semel._connection.renewer.remove(claim.renewed)
        self.assertEqual(self.semel.once(key, lambda: "second", on_unknown="rerun"), "second")
        self.assertTrue(claim.lost)
        with self.assertRaises(semel.Lost):
            claim.complete("first")
        self.assertEqual(self.semel.once(key, lambda: "third", on_unknown="rerun"), "second")

    def test_a_dropped_claim_is_no_longer_renewed(self) -> None:
        key, lease = new_key(), semel.Options(scope="tests", lease="1s")
        self.semel.claim(key, options=lease)
        with self.assertRaises(semel.OutcomeUnknown):
            self.semel.claim(key)

    def test_a_renewal_without_an_answer_holds_up_no_other(self) -> None:
        transport = Watched()
        client = semel.Semel(API or "", scope="tests", token=TOKEN, transport=transport)
        self.addCleanup(client.close)
        silent = client.claim(new_key(), options=semel.Options(scope="tests", lease="30s"))
        assert isinstance(silent, semel.Claim)
        transport.silence(silent.renewed.claim)
        # Its renewal is due at once, and has ten seconds.
        silent.renewed.asked_at -= 10.0
        client._connection.renewer.add(silent.renewed)
        transport.silenced.wait()
        with client.once(new_key(), lease="2s") as run:
            assert run.claim is not None
            time.sleep(5)
            self.assertFalse(run.claim.lost)

    def test_a_stampede_runs_once(self) -> None:
        def slow() -> int:
            time.sleep(0.2)
            return 7

        charge, key, results = Counter(slow), new_key(), []
        threads = [
            threading.Thread(target=lambda: results.append(self.semel.once(key, charge)))
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((results, charge.runs), ([7] * 10, 1))


@unittest.skipUnless(API, "SEMEL_TEST_API is not set")
class AsyncOnce(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.semel = semel.AsyncSemel(API or "", scope="tests", token=TOKEN)
        self.addAsyncCleanup(self.semel.aclose)

    async def test_a_function_a_block_and_a_decorated_function_run_once(self) -> None:
        charge = Counter(lambda: "done")

        async def call() -> str:
            return str(charge())

        key = new_key()
        self.assertEqual(await self.semel.once(key, call), "done")
        async with self.semel.once(key) as run:
            self.assertTrue(run.replayed)
        decorated = self.semel.once(lambda order: order)(lambda order: call())
        self.assertEqual((run.result, await decorated(key), charge.runs), ("done", "done", 1))

    async def test_a_blocked_event_loop_does_not_lose_its_claim(self) -> None:
        async def blocked() -> str:
            time.sleep(5)
            return "first"

        key = new_key()
        self.assertEqual(await self.semel.once(key, blocked, lease="2s"), "first")

    async def test_a_cancelled_operation_is_held(self) -> None:
        started, key = asyncio.Event(), new_key()

        async def endless() -> None:
            started.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(self.semel.once(key, endless))
        await started.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        with self.assertRaises(semel.OutcomeUnknown):
            await self.semel.once(key, endless)

    async def test_waiting_claims_leave_threads_to_the_operation(self) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        runs, key = 0, new_key()

        async def slow() -> int:
            nonlocal runs
            runs += 1
            await asyncio.sleep(0.2)
            return 7

        calls = (self.semel.once(key, slow) for _ in range(10))
        results = await asyncio.wait_for(asyncio.gather(*calls), 8)
        self.assertEqual((results, runs), ([7] * 10, 1))


@unittest.skipUnless(API, "SEMEL_TEST_API is not set")
class EndedLoop(unittest.TestCase):
    def test_a_claim_is_released_although_its_event_loop_ended(self) -> None:
        transport, key = Watched(), new_key()
        client = semel.Semel(API or "", scope="tests", token=TOKEN)
        self.addCleanup(client.close)
        owner = client.claim(key)
        assert isinstance(owner, semel.Claim)
        releasing = threading.Thread(target=lambda: owner.release(counted=False))

        async def leave() -> None:
            left = semel.AsyncSemel(API or "", scope="tests", token=TOKEN, transport=transport)
            call = asyncio.ensure_future(left.once(key, lambda: asyncio.sleep(0)))
            await asyncio.to_thread(transport.sent.acquire)
            call.cancel()
            await asyncio.wait([call])
            releasing.start()

        asyncio.run(leave())
        releasing.join()
        again = client.claim(key)
        assert isinstance(again, semel.Claim)
        self.assertEqual(again.attempt, 1)
        again.release()
