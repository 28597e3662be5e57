"""The course as web pages: python docs/site.py [FOLDER]; the pictures of the README's map: python docs/site.py --pictures

Every notebook with its outputs, notation, glossary and the like as HTML, and an index with a picture a notebook. Links
between notebooks lead to their pages. Ends with an error that lists every broken link inside the site.
"""

from __future__ import annotations

import base64
import html
import io
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import mistune
import nbformat
from nbconvert import HTMLExporter
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = {path.stem: path for path in sorted((ROOT / "docs").glob("*.md"))} | {"data": ROOT / "data" / "README.md"}
# Which of a notebook's figures stands for it, counted from 0.
PICTURE = {"00": 0, "01": 3, "02": 6, "03": 6, "04": 1, "05": 1, "06": 3, "07": 4, "08": 1, "09": 2, "10": 2, "11": 0}
STYLE = """
:root { color-scheme: light dark; }
body { font-family: system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.5; }
main.map { display: grid; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); gap: 1.2rem; }
main.map a { text-decoration: none; color: inherit; border: 1px solid #8888; border-radius: .5rem; padding: .8rem; }
main.map img { width: 100%; background: white; border-radius: .3rem; }
table { border-collapse: collapse; } td, th { border: 1px solid #8888; padding: .3rem .6rem; text-align: left; }
"""


def title(path: Path) -> str:
    """The heading of a notebook."""
    first = nbformat.read(path, 4).cells[0].source
    return first.splitlines()[0].lstrip("# ").replace("·", "").strip()


def pictures(path: Path) -> list[bytes]:
    """The PNG figures of a notebook, in order."""
    outputs = [output for cell in nbformat.read(path, 4).cells for output in cell.get("outputs", [])]
    return [base64.b64decode(o["data"]["image/png"]) for o in outputs if "image/png" in o.get("data", {})]


def picture(path: Path, width: int = 360) -> bytes:
    """The figure that stands for a notebook, as a small PNG on white."""
    image = Image.open(io.BytesIO(pictures(path)[PICTURE[path.stem[:2]]])).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    small = Image.alpha_composite(white, image).convert("RGB")
    small = small.resize((width, round(width * image.height / image.width)), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.quantize(64).save(file, "png", optimize=True)
    return file.getvalue()


def to_pages(text: str) -> str:
    """Links to notebooks and Markdown files as links to their pages."""
    text = text.replace('href="../data/README.md', 'href="data.md')
    return re.sub(r'(href="(?!\w+:)[^"#]*)\.(?:ipynb|md)(?=["#])', r"\1.html", text)


def page(heading: str, body: str) -> str:
    """A page of the site that is no notebook."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(heading)}</title>'
    return f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>"


def build(out: Path) -> None:
    """Write the site into a folder, which is made anew."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "pictures").mkdir(parents=True)
    cards = []
    for path in NOTEBOOKS:
        body, _ = HTMLExporter(template_name="lab").from_notebook_node(nbformat.read(path, 4))
        (out / f"{path.stem}.html").write_text(to_pages(body), encoding="utf-8")
        (out / "pictures" / f"{path.stem}.png").write_bytes(picture(path))
        name = html.escape(title(path))
        cards.append(f'<a href="{path.stem}.html"><img src="pictures/{path.stem}.png" alt=""><b>{name}</b></a>')
    links = []
    for name, path in PAGES.items():
        text = path.read_text(encoding="utf-8").replace("../notebooks/", "")
        heading = text.splitlines()[0].lstrip("# ")
        body = '<p><a href="index.html">grpo-lab</a></p>' + str(mistune.html(text))
        (out / f"{name}.html").write_text(page(heading, to_pages(body)), encoding="utf-8")
        links.append(f'<a href="{name}.html">{html.escape(heading)}</a>')
    about = "Reinforcement learning for language models, from first principles to a working GRPO run."
    intro = f"<h1>grpo-lab</h1><p>{about}</p>"
    body = f'{intro}<main class="map">{"".join(cards)}</main><p>{" · ".join(links)}</p>'
    (out / "index.html").write_text(page("grpo-lab", body), encoding="utf-8")


class _Links(HTMLParser):
    """What a page links to, and the ids that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name == "id":
                self.ids.add(value)
            if value and name in ("href", "src") and not re.match(r"[a-z]+:|//", value):
                self.targets.append(value)


def broken_links(out: Path) -> list[str]:
    """`page: target` for every link inside the site that leads nowhere."""
    pages = {path.name: _Links(path.read_text(encoding="utf-8")) for path in out.glob("*.html")}
    broken = []
    for name, found in pages.items():
        for target in found.targets:
            file, _, anchor = target.partition("#")
            there = (out / file).exists() if file else True
            known = pages.get(file or name)
            if not there or (anchor and known is not None and anchor not in known.ids):
                broken.append(f"{name}: {target}")
    return broken


def main(arguments: list[str]) -> None:
    """Build the site, or the README's pictures."""
    if arguments == ["--pictures"]:
        folder = ROOT / "docs" / "pictures"
        folder.mkdir(exist_ok=True)
        for path in NOTEBOOKS:
            (folder / f"{path.stem[:2]}.png").write_bytes(picture(path))
        return
    out = Path(arguments[0] if arguments else ROOT / "site")
    build(out)
    broken = broken_links(out)
    if broken:
        sys.exit("broken links:\n" + "\n".join(broken))
    print(f"{len(list(out.glob('*.html')))} pages in {out}")


if __name__ == "__main__":
    main(sys.argv[1:])
