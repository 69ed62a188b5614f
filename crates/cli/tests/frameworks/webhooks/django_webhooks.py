"""Django: `asgi` for uvicorn, and as a program on the WSGI server of the standard library.

GET /hits says how often the handler ran.
"""

import sys
from wsgiref.simple_server import WSGIRequestHandler, make_server

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from django.views.decorators.http import require_POST

settings.configure(
    ROOT_URLCONF="django_webhooks" if __name__ != "__main__" else "__main__",
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="of a test",
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
)
hits = 0


@require_POST
def handle(request):
    global hits
    hits += 1
    return HttpResponse("handled")


def count(request):
    return HttpResponse(str(hits))


urlpatterns = [path("webhooks/stripe", handle), path("hits", count)]
asgi = get_asgi_application()


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, get_wsgi_application(), handler_class=Quiet)
    print(f"running on http://127.0.0.1:{server.server_port}", file=sys.stderr, flush=True)
    server.serve_forever()
