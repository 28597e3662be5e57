"""JupyterLab, started for the tests, and one notebook in it, worked with mouse and keys as a person would."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ROOT = Path(__file__).resolve().parents[2]
THEMES = ("JupyterLab Light", "JupyterLab Dark")
PROMPTS = """() => [...document.querySelectorAll('.jp-NotebookPanel .jp-CodeCell .jp-InputArea-prompt')]
    .map((prompt) => prompt.textContent.trim())"""
FAULT = """() => document.querySelector(
    '.jp-NotebookPanel [data-mime-type="application/vnd.jupyter.stderr"], [data-mime-type="application/vnd.jupyter.error"]'
)?.textContent ?? ''"""
PICTURE = """async (panel) => {
    const image = panel.querySelector('img');
    if (!image || getComputedStyle(image).display === 'none')
        return [...panel.querySelectorAll('.widget-html-content')].at(-2).innerHTML;
    const bytes = await (await fetch(image.src)).arrayBuffer();
    return [...new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))].join(' ');
}"""
CONTRASTS = """(panel) => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => {
        const linear = (c) => (c <= 10.3 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
        const [x, y, z] = [r, g, b].map(linear);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = (element) => {
        const layers = [];
        for (let e = element; e; e = e.parentElement) {
            const colour = numbers(getComputedStyle(e).backgroundColor);
            layers.unshift(colour);
            if ((colour[3] ?? 1) === 1) break;
        }
        const over = (under, [r, g, b, a = 1]) => [r, g, b].map((c, i) => a * c + (1 - a) * under[i]);
        return layers.reduce(over, [255, 255, 255]);
    };
    const texts = [...panel.querySelectorAll('*')].filter(
        (e) => e.getClientRects().length && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
    return texts.map((e) => {
        const [one, other] = [light(numbers(getComputedStyle(e).color)), light(behind(e))];
        return [e.textContent.trim().slice(0, 40), (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)];
    });
}"""
"""Of each text in an element: how it begins, and its contrast to what lies behind it, as WCAG 2 defines that."""


class Lab:
    """A JupyterLab on a free loopback port, with settings of its own and a copy of the notebooks, so none is changed."""

    def __init__(self, folder: Path) -> None:
        self.root, self.token = folder / "course", secrets.token_hex(16)
        shutil.copytree(ROOT / "notebooks", self.root / "notebooks", ignore=shutil.ignore_patterns(".*"))
        for name in ("data", "prompts"):
            (self.root / name).symlink_to(ROOT / name)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        names = (
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_RUNTIME_DIR",
            "JUPYTERLAB_SETTINGS_DIR",
            "JUPYTERLAB_WORKSPACES_DIR",
            "IPYTHONDIR",
        )
        own = {name: str(folder / name.lower()) for name in names}
        self.settings = Path(own["JUPYTERLAB_SETTINGS_DIR"])
        self.set("notification", fetchNews="false", checkForUpdates=False)
        options = {
            "ServerApp.ip": "127.0.0.1", "ServerApp.port": self.url.rpartition(":")[2], "ServerApp.port_retries": 0,
            "ServerApp.root_dir": self.root, "IdentityProvider.token": self.token, "ServerApp.allow_root": True,
        }  # fmt: skip
        with (folder / "lab.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyter", "lab", "--no-browser", *(f"--{k}={v}" for k, v in options.items())],
                env=os.environ | own | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._wait(folder / "lab.log")

    def _wait(self, log: Path, seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.ask("GET", "api/status")
                return
            except OSError:
                time.sleep(0.3)
        raise RuntimeError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")

    def set(self, plugin: str, **values: object) -> None:
        """Settings of a plugin of @jupyterlab/apputils-extension, for pages that are opened from now on."""
        file = self.settings / "@jupyterlab" / "apputils-extension" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")

    def ask(self, method: str, path: str) -> object:
        """Call the server's own interface."""
        request = urllib.request.Request(
            f"{self.url}/{path}", method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def close(self) -> None:
        """End the server and the kernels that it started."""
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Notebook:
    """A notebook that is open in JupyterLab."""

    def __init__(self, page: Page, lab: Lab, name: str) -> None:
        self.page, self.lab = page, lab
        page.goto(f"{lab.url}/lab/tree/notebooks/{name}?reset&token={lab.token}")
        page.locator(".jp-NotebookPanel .jp-CodeCell").first.wait_for()
        page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()

    def menu(self, *path: str) -> None:
        """Choose from the menus at the top."""
        for depth, entry in enumerate(path):
            bar = ".lm-MenuBar-itemLabel" if depth == 0 else ".lm-Menu-itemLabel"
            self.page.locator(bar).get_by_text(entry, exact=True).click()

    def run_all(self, seconds: float) -> int:
        """Clear the outputs, run all cells, wait for the last of them. Returns how many code cells ran."""
        self.menu("Edit", "Clear Outputs of All Cells")
        self.page.wait_for_function(f"() => ({PROMPTS})().every((prompt) => prompt === '[ ]:')")
        self.menu("Run", "Run All Cells")
        ended = f"() => ({FAULT})() || ({PROMPTS})().every((prompt) => /\\d/.test(prompt))"
        self.page.wait_for_function(ended, timeout=1000 * seconds, polling=500)
        fault = self.page.evaluate(FAULT)
        assert not fault, fault[-2000:]
        return len(self.page.evaluate(PROMPTS))

    def wear(self, theme: str) -> None:
        """Choose a theme, and wait until it is there."""
        self.menu("Settings", "Theme", theme)
        self.page.locator(f'body[data-jp-theme-name="{theme}"]').wait_for(state="attached")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def cell(self, text: str) -> Locator:
        """The first code cell that holds this text."""
        return self.page.locator(".jp-CodeCell", has=self.page.locator(".jp-InputArea-editor", has_text=text)).first

    def write(self, cell: Locator, code: str) -> None:
        """Put code in the place of a cell's."""
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(code)

    def run_selected(self) -> None:
        """Run the selected cell and go to the next, as Shift+Enter does."""
        self.page.keyboard.press("Shift+Enter")

    def run_until(self, cell: Locator, output: str, seconds: float = 20) -> None:
        """Run a cell again and again until that is its output."""
        shown, end = cell.locator(".jp-OutputArea-output"), time.monotonic() + seconds
        while time.monotonic() < end:
            cell.locator(".cm-content").click()
            self.page.keyboard.press("Control+Enter")
            self.page.wait_for_timeout(300)
            if [text.strip() for text in shown.all_text_contents()] == [output]:
                return
        raise AssertionError(f"after {seconds} s the cell says {shown.all_text_contents()}, not {output}")

    def close(self) -> None:
        """Close the page and end its kernel."""
        self.page.close()
        for session in self.lab.ask("GET", "api/sessions"):
            self.lab.ask("DELETE", f"api/sessions/{session['id']}")


class Widget:
    """A widget in a cell's output: its controls by their labels, its message and its picture."""

    def __init__(self, cell: Locator) -> None:
        self.panel = cell.locator(".jp-OutputArea-output .widget-vbox").first
        self.panel.wait_for()
        self.page = cell.page

    def labels(self) -> list[str]:
        """What stands at its controls, and on its buttons."""
        labels = self.panel.locator(".widget-box > .jupyter-widgets:not(.widget-hprogress) > .widget-label")
        return labels.all_text_contents() + self.panel.locator("button").all_text_contents()

    def control(self, label: str) -> Locator:
        """The control beside a label."""
        return self.panel.locator(".jupyter-widgets", has=self.page.get_by_text(label, exact=True)).last

    def move(self, label: str, value: object = None) -> None:
        """Press the button of that name; drag its slider so many pixels; choose from its list; or type and press Enter."""
        button = self.panel.get_by_role("button", name=label, exact=True)
        if button.count():
            button.click()
            return
        control = self.control(label)
        if control.locator(".noUi-handle").count():
            self._drag(control.locator(".noUi-handle"), value)
        elif control.locator("select").count():
            control.locator("select").select_option(value)
        else:
            control.locator("input").fill(str(value))
            control.locator("input").press("Enter")

    def _drag(self, handle: Locator, pixels: float) -> None:
        handle.scroll_into_view_if_needed()
        box = handle.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + pixels, y, steps=2)
        self.page.mouse.up()

    def picture(self) -> str:
        """A digest of the picture that is seen; the HTML where it is HTML."""
        return self.panel.evaluate(PICTURE)

    def words(self) -> str:
        """What stands below the picture."""
        return self.panel.locator(".widget-html-content").last.text_content()

    def message(self) -> str:
        """What the message line says."""
        return self.panel.locator(".widget-html-content").first.text_content()

    def contrasts(self) -> list[tuple[str, float]]:
        """See CONTRASTS."""
        return self.panel.evaluate(CONTRASTS)
