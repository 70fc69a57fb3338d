"""The command that checks external links, with the site's settings, against a server of this test."""

import contextlib
import http.server
import subprocess
import sys
import threading

import pytest
from launching import REPOSITORY, worker_environment

pytest.importorskip("sphinx", reason="pip install -e '.[docs]'")
pytest.importorskip("furo")
PAGE = b'<html><body><h1 id="there">A page</h1></body></html>'


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers /page and, by a redirection to it, /moved; everything else is not found."""

    def do_GET(self):
        code = {"/page": 200, "/moved": 301}.get(self.path, 404)
        self.send_response(code)
        if code == 301:
            self.send_header("Location", "/page")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(PAGE)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def server():
    """Yields the address of the pages."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{served.server_port}"
        finally:
            served.shutdown()


def check(folder, *links):
    """Runs the command of CONTRIBUTING.md on a page with these links; returns its exit code and what it lists."""
    folder.mkdir()
    (folder / "index.md").write_text("# Links\n\n" + "".join(f"* [a link]({link})\n" for link in links))
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "linkcheck", "-c", str(REPOSITORY / "docs")]
    done = subprocess.run(
        [*command, str(folder), str(folder / "out")],
        env=worker_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, (folder / "out" / "output.txt").read_text(), done.stderr


def test_broken_links_and_anchors_are_named_and_others_are_not(tmp_path):
    assert "sphinx -b linkcheck docs site/links" in (REPOSITORY / "CONTRIBUTING.md").read_text()
    with server() as address:
        good = (f"{address}/page", f"{address}/page#there", "https://example.org/flowers.zip")
        code, listed, errors = check(tmp_path / "good", *good)
        assert code == 0 and "broken" not in listed, listed + errors
        code, listed, errors = check(
            tmp_path / "bad", *good, *(f"{address}/{end}" for end in ("gone", "page#no", "moved"))
        )
    assert code == 1, listed + errors
    lines = listed.splitlines()
    broken = [line for line in lines if "[broken]" in line]
    assert len(broken) == 2 and "/gone: 404" in listed, listed
    assert any("page#no" in line for line in broken) and any("/moved" in line and "redirect" in line for line in lines)
