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
from importlib import resources
from pathlib import Path

import mistune
import nbformat
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from PIL import Image
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = {path.stem: path for path in sorted((ROOT / "docs").glob("*.md"))} | {"data": ROOT / "data" / "README.md"}
# Which of a notebook's figures stands for it, counted from 0.
PICTURE = {"00": 0, "01": 3, "02": 6, "03": 6, "04": 1, "05": 1, "06": 3, "07": 4, "08": 1, "09": 2, "10": 2, "11": 0}
STYLE = """
:root { color-scheme: light dark; --text: #1c1c1c; --back: #ffffff; --code: #f4f4f4; --line: #d0d0d0; --link: #00569c; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e4e4; --back: #161616; --code: #232323; --line: #444444; --link: #7fbcf5; }
}
body { margin: 0; color: var(--text); background: var(--back); font: 17px/1.55 system-ui, sans-serif; }
main { max-width: 54rem; margin: auto; padding: 0 1rem; overflow-wrap: break-word; }
nav { padding: 0.6rem 1rem; border-bottom: 1px solid var(--line); display: flex; flex-wrap: wrap; gap: 0.3rem 1.2rem; }
main + nav { border: 0; border-top: 1px solid var(--line); margin-top: 3rem; }
a { color: var(--link); }
h1, h2, h3 { line-height: 1.25; margin-top: 2em; }
h1 { margin-top: 1em; }
pre, code { font: 14px/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { margin: 0; overflow-x: auto; }
.input_area, main > pre, .rendered_html pre { background: var(--code); border-radius: 4px; padding: 0.6rem 0.8rem; }
.output_area pre { padding: 0.5rem 0.8rem; border-left: 3px solid var(--line); margin: 0.4rem 0; }
.cell { margin: 0.9rem 0; }
.prompt { display: none; }
img { max-width: 100%; height: auto; background: #ffffff; border-radius: 4px; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.94em; }
th, td { border: 1px solid var(--line); padding: 0.3rem 0.6rem; vertical-align: top; }
details { border: 1px solid var(--line); border-radius: 4px; padding: 0.4rem 0.8rem; margin: 0.5rem 0; }
summary { cursor: pointer; }
@font-face { font-family: "STIX Two Math"; src: local("STIX Two Math"), url(STIXTwoMath-Regular.ttf); }
math { font-family: "STIX Two Math", "Cambria Math", math; }
math[display="block"] { margin: 0.9rem 0; overflow-x: auto; overflow-y: hidden; }
mtd { padding: 0.3em 0; }
mtd[columnalign="right"] { text-align: right; }
mtd[columnalign="left"] { text-align: left; }
.map { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; }
.map a { border: 1px solid var(--line); border-radius: 4px; padding: 0.7rem; text-decoration: none; }
.map img { display: block; width: 100%; height: 9rem; object-fit: contain; margin-bottom: 0.5rem; }
"""

SPACE = '<mspace width="0.17em"></mspace>'


def title(path: Path) -> str:
    """The heading of a notebook."""
    first = nbformat.read(path, 4).cells[0].source
    return re.sub(r"^(\d+)\W*", r"\1 ", first.splitlines()[0].lstrip("# "))


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


def to_mathml(text: str) -> str:
    """HTML with its formulas, $...$ and $$...$$ outside of code, as MathML. Raises ValueError for an unknown command."""

    def formula(match: re.Match[str]) -> str:
        if match["code"]:
            return match["code"]
        latex = html.unescape(match["block"] or match["line"]).replace("{aligned}", "{split}")
        mathml = convert(latex, display="block" if match["block"] else "inline")
        if "\\" in mathml:
            raise ValueError(f"the formula {latex!r} has a command that latex2mathml does not know")
        mathml = re.sub(r"(<mi>(?:log|exp|min|max)</mi>)(?!<mo|</)", rf"\1{SPACE}", mathml)
        return re.sub(r"(?<=</mi>|msub>)(<mi>(?:log|exp|min|max)</mi>)", rf"{SPACE}\1", mathml)

    pattern = r"(?P<code><(pre|code)\b.*?</\2>)|\$\$(?P<block>.+?)\$\$|\$(?P<line>[^$\n]+?)\$"
    return re.sub(pattern, formula, text, flags=re.DOTALL)


def notebook_html(path: Path, out: Path) -> str:
    """A notebook as the content of a page; its figures are written to out/figures/."""

    def prose(text: str) -> str:
        markdown = MarkdownWithMath(renderer=IPythonRenderer(escape=False, exclude_anchor_links=True))
        return to_pages(to_mathml(markdown.render(text)))

    exporter = HTMLExporter(template_name="basic", filters={"markdown2html": prose})
    exporter.register_preprocessor("nbconvert.preprocessors.ExtractOutputPreprocessor", enabled=True)
    names = {"unique_key": path.stem, "output_files_dir": "figures"}
    body, extracted = exporter.from_notebook_node(nbformat.read(path, 4), names)
    (out / "figures").mkdir(exist_ok=True)
    for name, content in extracted["outputs"].items():
        (out / name).write_bytes(content)
    return re.sub('alt="No description[^"]*"', 'alt="The figure of the code above."', body)


def page(heading: str, body: str, links: dict[str, str]) -> str:
    """A page between two rows of links, which are given as text by target."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(heading)}</title>'
    style = '<meta name="color-scheme" content="light dark"><link rel="stylesheet" href="style.css">'
    anchors = " ".join(f'<a href="{target}">{html.escape(text)}</a>' for target, text in links.items())
    row = f"<nav>{anchors}</nav>"
    return f"<!doctype html><html lang=en><head>{head}{style}</head><body>{row}<main>{body}</main>{row}</body></html>"


def style() -> str:
    """The style sheet, with the colours of code on light and on dark."""
    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark"))
    plain = ".highlight, .highlight pre { background: none; }"
    return f"{STYLE}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{plain}\n"


def build(out: Path) -> None:
    """Write the site into a folder, which is made anew."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "pictures").mkdir(parents=True)
    (out / "style.css").write_text(style(), encoding="utf-8")
    # ziamath is there for this font alone: without a font for mathematics a browser puts subscripts on the line.
    font = resources.files("ziamath.fonts") / "STIXTwoMath-Regular.ttf"
    (out / "STIXTwoMath-Regular.ttf").write_bytes(font.read_bytes())
    documents = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
    headings = {f"{name}.html": text.splitlines()[0].lstrip("# ") for name, text in documents.items()}
    home = {"index.html": "grpo-lab"}
    cards = []
    for k, path in enumerate(NOTEBOOKS):
        near = {
            f"{other.stem}.html": title(other) for other in (*NOTEBOOKS[max(k - 1, 0) : k], *NOTEBOOKS[k + 1 : k + 2])
        }
        text = page(title(path), notebook_html(path, out), home | near | headings)
        (out / f"{path.stem}.html").write_text(text, encoding="utf-8")
        (out / "pictures" / f"{path.stem}.png").write_bytes(picture(path))
        name = html.escape(title(path))
        cards.append(f'<a href="{path.stem}.html"><img src="pictures/{path.stem}.png" alt=""><b>{name}</b></a>')
    for name, text in documents.items():
        body = to_pages(str(mistune.html(text.replace("../notebooks/", ""))))
        heading = headings[f"{name}.html"]
        (out / f"{name}.html").write_text(page(heading, body, home | headings), encoding="utf-8")
    about = "Reinforcement learning for language models, from first principles to a working GRPO run."
    how = "To run the notebooks, move their sliders and have your exercises checked: <code>make lab</code>."
    body = f'<h1>grpo-lab</h1><p>{about} {how}</p><div class="map">{"".join(cards)}</div>'
    (out / "index.html").write_text(page("grpo-lab", body, headings), encoding="utf-8")


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
