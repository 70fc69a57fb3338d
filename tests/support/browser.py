"""A headless Chromium that chromedriver controls over HTTP (https://www.w3.org/TR/webdriver2), for tests of pages."""

import base64
import contextlib
import dataclasses
import json
import pathlib
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import launching

# Of a busy machine.
_SECONDS = 600.0
# Returns the text and the links of the page, with what custom elements hold in shadow trees.
_TEXT = """
const words = [];
(function walk(node) {
    if (node.nodeType === Node.TEXT_NODE) words.push(node.textContent.trim());
    if (node.tagName === "STYLE" || node.tagName === "SCRIPT") return;
    if (node.shadowRoot) walk(node.shadowRoot);
    node.childNodes.forEach(walk);
})(document.body);
// TensorBoard divides a tag before its last part.
return words.filter(Boolean).join("\\n").replaceAll("\\n/", "/");
"""


def missing() -> str:
    """Why there is no browser; "" if there is one."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(absent)} (Debian packages chromium, chromium-driver)" if absent else ""


@dataclasses.dataclass(frozen=True)
class Browser:
    """A window; created by `opened`."""

    url: str

    def show(self, address: str, *expected: str) -> str:
        """Opens a page, waits until its text has each line of `expected` at least as often, and returns the text."""
        self._call("/url", {"url": "about:blank"})  # A change of the fragment alone loads nothing.
        self._call("/url", {"url": address})
        end = time.monotonic() + _SECONDS
        while True:
            text = self._call("/execute/sync", {"script": _TEXT, "args": []})
            lines = text.splitlines()
            absent = {one for one in expected if lines.count(one) < expected.count(one)}
            if not absent:
                return text
            assert time.monotonic() < end, f"The page does not show {absent}. It shows:\n{text}"
            time.sleep(0.5)

    def screenshot(self, path: pathlib.Path) -> None:
        """Writes a picture of the window, as PNG."""
        path.write_bytes(base64.b64decode(self._call("/screenshot")))

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return _request(f"{self.url}{path}", body)


@contextlib.contextmanager
def opened(folder: pathlib.Path) -> Iterator[Browser]:
    """Starts the browser with an empty profile in `folder`, and ends it after the `with` block."""
    (port,) = launching.free_ports(1)
    with (folder / "chromedriver.log").open("wb") as log:
        driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=log, stderr=log, start_new_session=True)
        try:
            base = f"http://localhost:{port}"
            wait_for(f"{base}/status")
            arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
            arguments += ["--window-size=1400,1000", f"--user-data-dir={folder / 'profile'}"]
            options = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
            session = _request(f"{base}/session", {"capabilities": {"alwaysMatch": options}})["sessionId"]
            try:
                yield Browser(f"{base}/session/{session}")
            finally:
                _request(f"{base}/session/{session}", method="DELETE")
        finally:
            driver.terminate()
            driver.wait()


def wait_for(address: str) -> None:
    """Waits until a server answers."""
    end = time.monotonic() + _SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                answer.read()
            return
        except OSError:
            assert time.monotonic() < end, f"{address} does not answer"
            time.sleep(0.2)


def _request(address: str, body: dict[str, Any] | None = None, method: str | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from None
