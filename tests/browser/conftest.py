"""A JupyterLab and a Chromium for all tests in a browser; without them the tests are skipped, with the reason."""

from __future__ import annotations

import os
import shutil

import pytest
from lab_page import Lab, Notebook

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # the course needs no other machine
    "--no-first-run",
]
SECONDS = 60
"""Time limit for one thing in the page to appear; machines with other work to do are slow."""


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: `make browser` installs it")
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not chromium:
        pytest.skip(
            f"no {', '.join(NAMES)} on the path: install one (Debian: `apt-get install chromium`), or set CHROMIUM"
        )
    as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=QUIET + as_root)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(browser, tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@pytest.fixture(scope="session")
def new_page(browser):
    """A function that opens an empty page."""

    def new_page():
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        page.set_default_timeout(1000 * SECONDS)
        return page

    return new_page


@pytest.fixture
def opened(new_page, lab):
    """A function that opens a notebook of the course by its file name; it is closed with the test."""
    notebooks = []

    def opened(name):
        notebooks.append(Notebook(new_page(), lab, name))
        return notebooks[-1]

    yield opened
    for notebook in notebooks:
        notebook.close()
