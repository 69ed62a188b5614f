"""Records when Stripe's own SDK retries: the delays of each call against a scripted server.

Reads [{"random": NUMBER, "answers": [[STATUS, {HEADER: VALUE}] or null, ...]}, ...] from standard
input, where null breaks the connection, and writes one line for each call: {"delays": [SECONDS, ...],
"requests": COUNT}. No time passes.
"""

import http.server
import json
import random
import socket
import struct
import sys
import threading
import time

import stripe

answers = []
requests = 0


class Scripted(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global requests
        self.rfile.read(int(self.headers.get("content-length", 0)))
        requests += 1
        answer = answers.pop(0) if answers else [200, {}]
        if answer is None:
            # Without lingering, so that the client sees a reset.
            self.connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self.connection.close()
            self.close_connection = True
            return
        status, headers = answer
        body = b'{"id": "cus_1", "object": "customer"}'
        if status >= 400:
            body = b'{"error": {"type": "api_error", "message": "scripted"}}'
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    def finish(self):
        try:
            super().finish()
        except (OSError, ValueError):
            pass


def record(url, call):
    global requests
    delays = []
    answers[:] = call["answers"]
    requests = 0
    random.uniform = lambda low, high: low + (high - low) * call["random"]
    time.sleep = delays.append
    client = stripe.StripeClient(
        "sk_test_recorded", base_addresses={"api": url}, max_network_retries=2
    )
    try:
        client.v1.customers.create({"description": "an order"})
    except stripe.StripeError:
        pass
    return {"delays": delays, "requests": requests}


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for call in json.load(sys.stdin):
        print(json.dumps(record(f"http://127.0.0.1:{server.server_port}", call)))


main()
