"""Flask on the WSGI server of the standard library. GET /hits says how often the handler ran."""

import sys
from wsgiref.simple_server import WSGIRequestHandler, make_server

from flask import Flask

app = Flask(__name__)
hits = 0


@app.post("/webhooks/stripe")
def handle():
    global hits
    hits += 1
    return "handled"


@app.get("/hits")
def count():
    return str(hits)


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


server = make_server("127.0.0.1", 0, app, handler_class=Quiet)
print(f"running on http://127.0.0.1:{server.server_port}", file=sys.stderr, flush=True)
server.serve_forever()
