"""A program that sends one message to a webhook. It reads the URL, a line break and the JSON text from its standard input.

It runs as a process of its own, so that the sender can end it at any time: no timeout of a socket covers the whole of a request.
"""

import http.client
import sys
import urllib.error
import urllib.request
from typing import Any


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that makes each redirect an error, so that a message goes nowhere but to the configured address."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def send() -> str:
    """Send the message of the standard input. Return an error, or "" if the receiver took the message."""
    url, _, body = sys.stdin.buffer.read().partition(b"\n")
    request = urllib.request.Request(url.decode(), body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirects).open(request):
            return ""
    except urllib.error.HTTPError as exc:
        with exc:
            return f"HTTP {exc.code}" + ("; a redirect is not followed: set the final address" if 300 <= exc.code < 400 else "")
    except (OSError, http.client.HTTPException, ValueError) as exc:
        return str(getattr(exc, "reason", exc)) or type(exc).__name__


if __name__ == "__main__":
    sys.exit(send() or 0)
