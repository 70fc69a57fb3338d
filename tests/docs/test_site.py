"""The pages as a site: no warnings, every page in the navigation, internal links that lead somewhere."""

import html.parser
import pathlib
import sys
import urllib.parse

import forked
import pytest
from launching import REPOSITORY, worker_environment

pytest.importorskip("sphinx", reason="pip install -e '.[docs]'")
pytest.importorskip("furo")
DOCS = REPOSITORY / "docs"
# The build takes as long as a training; tests/docs/test_documents.py checks names and links of the pages by default.
pytestmark = pytest.mark.slow


class Links(html.parser.HTMLParser):
    """The targets of links and pictures of a page, and the names that links may point to."""

    def __init__(self, page: pathlib.Path):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.names |= {values[key] for key in ("id", "name") if values.get(key)}
        self.links += [values[key] for key in ("href", "src") if values.get(key) and tag in ("a", "img")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", DOCS, folder]
    done = forked.run(command, env=worker_environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


def broken(page, site, names):
    """The internal links of a page that lead nowhere."""
    for link in Links(page).links:
        target = urllib.parse.urlparse(link)
        if target.scheme or target.netloc:
            continue
        path = (page.parent / urllib.parse.unquote(target.path)).resolve() if target.path else page
        known = names.get(path, set())
        if not path.is_file() or (target.fragment and path.suffix == ".html" and target.fragment not in known):
            yield f"{page.relative_to(site)}: {link}"


def test_every_page_is_in_the_site_and_in_its_navigation(site):
    navigation = {urllib.parse.urlparse(link).path for link in Links(site / "index.html").links}
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in [*DOCS.glob("*.md"), *DOCS.glob("api/*.md")]]
    assert len(pages) > 30
    assert [str(page) for page in pages if page.name != "index.html" and str(page) not in navigation] == []


def test_internal_links_lead_somewhere(site):
    pages = [path.resolve() for path in site.rglob("*.html")]
    names = {page: Links(page).names for page in pages}
    assert [problem for page in pages for problem in broken(page, site.resolve(), names)] == []


def test_pages_name_one_another_by_links_and_functions_have_their_docstrings(site):
    guide = (site / "guide.html").read_text()
    assert 'href="slurm.html"' in guide and "docs/slurm.md" not in guide
    api = (site / "api" / "index.html").read_text()
    assert "Global batch size: examples per step over all replicas," in api and "Fields:" not in api
    assert "validation_split" in api
