"""The web server of the page: its routes, its files, and who may read them. It only reads; no request changes anything."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import hmac
import importlib.util
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rl4sys_zmq.errors import AddressInUse, ConfigError, TransportError
from rl4sys_zmq.learner.run.history import to_json
from rl4sys_zmq.loopback import is_local
from rl4sys_zmq.web.health import alive, ready
from rl4sys_zmq.web.metrics import metrics_text
from rl4sys_zmq.web.views import MALFORMED, SORTS, actors_page, client_document
from rl4sys_zmq.web.watcher import LearnerSnapshot, Watcher

COOKIE = "rl4sys_web"
LEAST_TOKEN_CHARS = 16
_SCRIPT, _PAGE = "text/javascript", "text/html"
FILES = {"page.css": "text/css", "page.js": _SCRIPT, "charts.js": _SCRIPT, "login.js": _SCRIPT, "icon.svg": "image/svg+xml"}
PLOTLY = "plotly.min.js"
_STYLES_OF_PLOTLY = (
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"  # an empty element, which it fills through the CSSOM
    " 'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='"  # that of its maps, which are not used
)
HEADERS = {
    "content-security-policy": f"default-src 'none'; script-src 'self'; style-src 'self' {_STYLES_OF_PLOTLY}; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class WebServer:
    """The page of some learners at one address. `serve` runs it in the calling thread until it is told to stop.

    Attributes:
        address: Where it listens, as ``host:port``.
    """

    def __init__(self, watchers: Sequence[Watcher], bind: str, token: str | None) -> None:
        """Listen at `bind`, without an answer until `serve` is called. With `token`, only those who have it may read.

        Raises:
            AddressInUse: If another program listens there.
            ConfigError: If other machines can reach the address and there is no token, or plotly is not installed.
        """
        if token is None and not is_local(bind):
            raise ConfigError(f"{bind}: other machines reach this address, so a token is needed; give --token-file", key="bind")
        if token is not None and (len(token) < LEAST_TOKEN_CHARS or not token.isascii() or not token.isprintable()):
            raise ConfigError(f"a token has at least {LEAST_TOKEN_CHARS} printable characters of ASCII", key="token_file")
        self._watchers = {watcher.address: watcher for watcher in watchers}
        self._files = _read_files()
        self._socket = _listen(bind)
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        routes: Mapping[str, Callable[[Request], Any]] = {
            "/": self._page,
            "/client": self._page,
            "/login": self._login,
            "/static/{name}": self._static,
            "/api/status": self._status,
            "/api/client": self._client,
            "/api/actors": self._actors,
            "/api/history": self._history,
            "/metrics": self._metrics,
            "/healthz": lambda request: self._probe(request, alive),
            "/readyz": lambda request: self._probe(request, ready),
        }
        guard = Middleware(_Guard, token=token, host=None if token is not None else host)
        self.app = Starlette(
            routes=[Route(path, _endpoint(handler), methods=["GET"]) for path, handler in routes.items()],
            middleware=[guard, Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=4)],
        )

    def serve(self, stop: Callable[[], bool]) -> None:
        """Answer requests until `stop`, which is called ten times a second, returns True or raises."""
        options: dict[str, Any] = {
            **{"limit_concurrency": 128, "timeout_keep_alive": 10, "timeout_graceful_shutdown": 1},
            **{"log_config": None, "access_log": False, "server_header": False, "proxy_headers": False},
            **{"lifespan": "off", "loop": "asyncio", "http": "h11", "ws": "none"},
        }
        config = uvicorn.Config(self.app, **options)
        try:
            _Uvicorn(config, stop).run(sockets=[self._socket])
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _page(self, request: Request) -> Response:
        name = "page.html" if request.state.may_read else "login.html"
        return self._file(request, name, HTTPStatus.OK if request.state.may_read else HTTPStatus.UNAUTHORIZED)

    def _login(self, request: Request) -> Response:
        """Give a browser that has sent the token a cookie, so that the token is in no address and no script keeps it."""
        response = Response(status_code=HTTPStatus.NO_CONTENT)
        if request.state.cookie is not None:
            response.set_cookie(COOKIE, request.state.cookie, httponly=True, samesite="strict")
        return response

    def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        return self._file(request, name) if name in FILES or name == PLOTLY else _error("no such file", HTTPStatus.NOT_FOUND)

    def _file(self, request: Request, name: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
        kind, content, tag = self._files[name]
        headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == tag and status == HTTPStatus.OK:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(content, status, {**headers, "content-encoding": "gzip"}, kind)
        return Response(gzip.decompress(content), status, headers, kind)

    def _status(self, request: Request) -> Response:
        return _json({"learners": [watcher.overview() for watcher in self._watchers.values()]})

    def _client(self, request: Request) -> Response:
        return _json(client_document(self._report(request), request.query_params["client"]))

    def _actors(self, request: Request) -> Response:
        sort = request.query_params.get("sort", "silent_s")
        if sort not in SORTS:
            return _error(f"sort is one of {', '.join(SORTS)}", HTTPStatus.BAD_REQUEST)
        return _json(actors_page(self._report(request), request.query_params["client"], _number(request, "page"), sort))

    def _history(self, request: Request) -> Response:
        watcher = self._watchers[request.query_params["learner"]]
        records, following, epoch = watcher.records(request.query_params.get("client"), _number(request, "since"))
        return Response(
            b'{"epoch":%b,"next":%d,"records":%b}' % (to_json(epoch), following, records), media_type="application/json"
        )

    def _report(self, request: Request) -> Mapping[str, Any]:
        return self._watchers[request.query_params["learner"]].snapshot().report or {"clients": {}}

    def _metrics(self, request: Request) -> Response:
        text = metrics_text(self._snapshots(), actors=request.query_params.get("actors") == "1")
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _probe(self, request: Request, check: Callable[[Sequence[LearnerSnapshot]], list[str]]) -> Response:
        """Answer 200, or 503 with the reasons, which only those who may read get."""
        reasons = check(self._snapshots())
        text = "\n".join(reasons) if request.state.may_read or not reasons else "no"
        return Response(
            f"{text or 'ok'}\n", HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, media_type="text/plain"
        )

    def _snapshots(self) -> list[LearnerSnapshot]:
        return [watcher.snapshot() for watcher in self._watchers.values()]


class _Guard:
    """Lets in who has the token, or without a token who names this machine, and sets the headers of all answers.

    A page of a foreign site whose name was made to lead to this machine (DNS rebinding) names itself as the host.
    """

    OPEN = ("/static/", "/healthz", "/readyz")

    def __init__(self, app: ASGIApp, token: str | None, host: str | None) -> None:
        self._app, self._host = app, host
        self._token = token.encode() if token is not None else None
        self._cookie = hmac.new(self._token, b"cookie", hashlib.sha256).hexdigest() if self._token is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        may_read = self._may_read(request)
        request.state.may_read, request.state.cookie = may_read, self._cookie

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                defaults = {**HEADERS, "cache-control": "no-store"}
                message["headers"] += [(k.encode(), v.encode()) for k, v in defaults.items() if k.encode() not in given]
            await send(message)

        if self._host is not None and not self._names_this_machine(request):
            answer = _error("this address is for this machine only: open it as localhost", HTTPStatus.MISDIRECTED_REQUEST)
            await answer(scope, receive, with_headers)
        elif may_read or request.url.path in ("/", "/client") or request.url.path.startswith(self.OPEN):
            await self._app(scope, receive, with_headers)
        else:
            answer = _error("the token is missing or wrong: send Authorization: Bearer TOKEN", HTTPStatus.UNAUTHORIZED)
            answer.headers["www-authenticate"] = "Bearer"
            await answer(scope, receive, with_headers)

    def _may_read(self, request: Request) -> bool:
        if self._token is None or self._cookie is None:
            return True
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(sent.strip().encode(), self._token):
            return True
        return hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), self._cookie.encode())

    def _names_this_machine(self, request: Request) -> bool:
        host = request.headers.get("host", "")
        return is_local(host if host.rpartition(":")[2].isdigit() and not host.endswith("]") else f"{host}:80")


class _Uvicorn(uvicorn.Server):
    """uvicorn, with the signals of the command instead of its own."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], bool]) -> None:
        super().__init__(config)
        self._stop = stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._stop()


def _endpoint(handler: Callable[[Request], Response]) -> Callable[[Request], Any]:
    """Return an endpoint that calls a handler, which never waits, and answers what a request got wrong."""

    async def endpoint(request: Request) -> Response:
        try:
            return handler(request)
        except KeyError as exc:
            return _error(f"{exc} is missing or unknown", HTTPStatus.NOT_FOUND)
        except MALFORMED as exc:
            return _error(f"the learner's answer, or the request, is malformed: {exc}", HTTPStatus.BAD_REQUEST)

    return endpoint


def _number(request: Request, name: str) -> int:
    return int(request.query_params.get(name, "0"))


def _json(value: object) -> Response:
    return Response(to_json(value), media_type="application/json")


def _error(text: str, status: HTTPStatus) -> Response:
    return Response(to_json({"error": text}), status, media_type="application/json")


def _listen(bind: str) -> socket.socket:
    host, _, port = bind.rpartition(":")
    try:
        return socket.create_server(
            (host.strip("[]"), int(port)), family=socket.AF_INET6 if host.startswith("[") else socket.AF_INET, backlog=128
        )
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise AddressInUse(bind) from exc
        raise TransportError(f"{bind}: {exc.strerror or exc}; give an address of this machine, such as 127.0.0.1:8080") from exc


def _read_files() -> dict[str, tuple[str, bytes, str]]:
    """Return the page's files, and plotly's as its package has it: type, content in gzip, entity tag."""
    here = Path(__file__).with_name("static")
    paths = {name: (kind, here / name) for name, kind in {**FILES, "page.html": _PAGE, "login.html": _PAGE}.items()}
    spec = importlib.util.find_spec("plotly")  # importing it would cost memory
    if spec is None or spec.origin is None:
        raise ConfigError("the page needs plotly, which is not installed: pip install 'rl4sys-zmq[web]'")
    paths[PLOTLY] = "text/javascript", Path(spec.origin).parent / "package_data" / PLOTLY
    files = dict[str, tuple[str, bytes, str]]()
    for name, (kind, path) in paths.items():
        content = path.read_bytes()
        tag = hashlib.blake2b(content, digest_size=12).hexdigest()
        files[name] = f"{kind}; charset=utf-8", gzip.compress(content, 6), f'"{tag}"'
    return files
