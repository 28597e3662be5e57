"""The course as web pages: a page a notebook, links that lead somewhere, and a checker that sees those that do not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def site():
    spec = importlib.util.spec_from_file_location("course_site", ROOT / "docs" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_broken_links_are_found(site, tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#top">x</a><a href="#here">y</a><img src="no.png"><a href="https://example.org/c">z</a>'
        '<a href="b.html#gone">u</a><a href="#gone">v</a><a href="c.html">w</a></p>'
    )
    (tmp_path / "b.html").write_text('<h1 id="top">b</h1>')
    assert site.broken_links(tmp_path) == ["a.html: no.png", "a.html: b.html#gone", "a.html: #gone", "a.html: c.html"]


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ('<a href="01_x.ipynb">', '<a href="01_x.html">'),
        ('<a href="01_x.ipynb#part">', '<a href="01_x.html#part">'),
        ('<a href="glossary.md">', '<a href="glossary.html">'),
        ('<a href="../data/README.md">', '<a href="data.html">'),
        ('<a href="https://example.org/a.md">', '<a href="https://example.org/a.md">'),
    ],
)
def test_links_to_pages(site, link, expected):
    assert site.to_pages(link) == expected


def test_formulas_become_mathml(site):
    assert "<mi>&#x003C0;</mi>" in site.to_mathml("<p>the policy $\\pi$</p>")
    assert 'display="block"' in site.to_mathml("$$x &lt; y$$")
    assert site.to_mathml("$$\\begin{aligned} a &amp;= b \\\\ &amp;= c \\end{aligned}$$").count("<mtr>") == 2
    assert site.to_mathml("$A \\log p$").count(site.SPACE) == 2
    for plain in ("<code>$a$</code> and <pre>\n$b$\n</pre>", "costs $5", "no formula"):
        assert site.to_mathml(plain) == plain
    with pytest.raises(ValueError, match=r"unheardof.*does not know"):
        site.to_mathml(r"$\unheardof x$")


def test_a_notebook_needs_no_other_machine(site, tmp_path):
    text = site.notebook_html(next(path for path in site.NOTEBOOKS if path.stem.startswith("03")), tmp_path)
    assert text.count("<math") > 20
    assert text.count("<details>") >= 2
    assert not re.findall(r'(?:src|href)="(?:https?:|//|data:)[^"]*"', text)
    figures = re.findall(r'<img[^>]* src="([^"]+)"|<img src="([^"]+)"', text)
    assert len(figures) == len(list((tmp_path / "figures").iterdir())) >= 10


def test_a_small_site(site, tmp_path, monkeypatch):
    """Of the first notebook and the documents; what is broken then are the links to the other notebooks alone."""
    monkeypatch.setattr(site, "NOTEBOOKS", site.NOTEBOOKS[:1])
    site.build(tmp_path / "site")
    pages = {path.name for path in (tmp_path / "site").glob("*.html")}
    assert {"index.html", "00_tour.html", "notation.html", "glossary.html", "data.html"} <= pages
    assert 'href="00_tour.html"' in (tmp_path / "site" / "index.html").read_text()
    assert (tmp_path / "site" / "pictures" / "00_tour.png").stat().st_size < 60_000
    others = {path.stem + ".html" for path in (ROOT / "notebooks").glob("*.ipynb")} - {"00_tour.html"}
    assert {link.split(": ")[1].split("#")[0] for link in site.broken_links(tmp_path / "site")} <= others


def test_every_notebook_has_its_picture(site):
    for path in site.NOTEBOOKS:
        assert len(site.pictures(path)) > site.PICTURE[path.stem[:2]], path.name
        assert (ROOT / "docs" / "pictures" / f"{path.stem[:2]}.png").is_file()
