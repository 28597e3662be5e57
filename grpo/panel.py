"""The shell of the course's widgets: controls above, then a message line, the picture and its numbers in words.

A widget is a `Panel` with three methods: `compute` makes plain data of the controls' values, `draw` a picture of them and
`describe` words. Each calls plain functions, which tests and notebooks call as well. A value that is refused leaves the
picture as it was, and the message line says why.

Pictures are PNG, or HTML with a background of its own, so they look the same in JupyterLab, VS Code and Colab, on light and
on dark.

JupyterLab with ipykernel 7 calls observers from several threads at once. A lock lets the widgets work one after the other:
without it an older setting that takes longer ends up on top of a newer one. Matplotlib needs it too.
"""

from __future__ import annotations

import base64
import html
import io
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

try:
    import ipywidgets as widgets
except ImportError as error:
    raise ImportError('the widgets need ipywidgets, of the extra "lab": pip install "grpo-lab[lab]"') from error

DPI = 90
_ONE_AT_A_TIME = threading.RLock()
_ON_WHITE = "background:#ffffff;color:#111111;padding:6px 10px;border-radius:3px;overflow-x:auto;"
_WARNING = "background:#fff1e0;color:#5a2a00;border-left:5px solid #D55E00;padding:4px 10px;"


def on_white(content: str) -> str:
    """HTML in a box with a white background and dark text."""
    return f'<div style="{_ON_WHITE}">{content}</div>'


def to_png(figure: Figure) -> bytes:
    """The figure as PNG, on white."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()


@dataclass(frozen=True)
class Still:
    """A widget's picture and its words, without the controls: what lives on in a committed notebook."""

    bundle: dict[str, str]
    """Content by MIME type."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.bundle


class Panel(widgets.VBox):
    """Controls, and a picture of what they say.

    After a change of a control, `state` (name -> value, of what is shown) and `data` (what `compute` made of it) are new,
    or `problem` says why they are not.
    """

    state: dict[str, Any]
    data: Any
    problem: str = ""

    def __init__(self, controls: Mapping[str, Any], extras: Sequence[Any] = ()) -> None:
        """controls: value widgets by their names in `compute`. extras: other widgets, shown beside them.

        Raises ValueError when what they say at the start makes no picture.
        """
        self.controls = dict(controls)
        self._setting = False
        self._message, self._words = widgets.HTML(), widgets.HTML()
        self._image, self._html = widgets.Image(format="png", layout={"max_width": "100%"}), widgets.HTML()
        for control in self.controls.values():
            control.style.description_width = "10.5em"
            control.layout.width = (
                "40em" if isinstance(control, widgets.Text) else "26em"
            )  # three to a row; paths are long
            control.observe(self._changed, names="value")
        row = widgets.Box([*self.controls.values(), *extras], layout={"flex_flow": "row wrap"})
        super().__init__([row, self._message, self._image, self._html, self._words])
        self.refresh()
        if self.problem:
            raise ValueError(self.problem)

    def compute(self, *_: Any, **values: Any) -> Any:
        """Plain data of the controls' values. Raises ValueError or OSError, for people to read, where there is none."""
        raise NotImplementedError

    def draw(self, data: Any) -> Figure | str:
        """A figure, or HTML."""
        raise NotImplementedError

    def describe(self, data: Any) -> str:
        """The numbers of the picture in words, in lines of plain text."""
        raise NotImplementedError

    def set(self, **values: Any) -> None:
        """Set several controls at once, as by hand, and draw once. Raises ValueError for a name that no control has."""
        unknown = [name for name in values if name not in self.controls]
        if unknown:
            raise ValueError(
                f"{unknown[0]}={values[unknown[0]]!r}: there is no such control; use {', '.join(self.controls)}"
            )
        with _ONE_AT_A_TIME:
            self._setting = True
            try:
                for name, value in values.items():
                    self.controls[name].value = value
            finally:
                self._setting = False
            self.refresh()

    def refresh(self) -> None:
        """Compute and draw from the controls; where that fails, keep what is shown and say why."""
        values = {name: control.value for name, control in self.controls.items()}
        try:
            data = self.compute(**values)
            self._show(data)
        except Exception as error:  # a student's slider must never end in a traceback
            kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
            self.problem = f"{kind}{error}"
            kept = " What is shown is the last setting that worked." if hasattr(self, "data") else ""
            self._message.value = f'<div style="{_WARNING}">&#9888; {html.escape(self.problem)}.{kept}</div>'
            return
        self.state, self.data, self.problem = values, data, ""
        self._message.value = ""

    def redraw(self) -> None:
        """Draw the data that are there once more."""
        with _ONE_AT_A_TIME:
            self._show(self.data)

    def _show(self, data: Any) -> None:
        picture, words = self.draw(data), self.describe(data)
        self._image.value = to_png(picture) if isinstance(picture, Figure) else b""
        self._html.value = on_white(picture) if isinstance(picture, str) else ""
        self._image.layout.display = None if isinstance(picture, Figure) else "none"
        plain = f'<pre style="margin:0;color:inherit;background:inherit">{html.escape(words)}</pre>'
        self._words.value = on_white(plain) if isinstance(picture, Figure) else ""  # HTML is words already

    def picture(self) -> Still:
        """What is shown now, without the controls."""
        words = {"text/plain": self.describe(self.data)}
        if self._image.value:
            return Still(words | {"image/png": base64.b64encode(self._image.value).decode()})
        return Still(words | {"text/html": self._html.value})

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return super()._repr_mimebundle_(**kwargs) | self.picture().bundle

    def _changed(self, _: Any) -> None:
        with _ONE_AT_A_TIME:
            if not self._setting:
                self.refresh()


def slider(description: str, value: float, low: float, high: float, step: float, continuous: bool = True) -> Any:
    """A slider, of integers when the step is one. `continuous=False`: for what takes long, only where it is let go."""
    kind = widgets.IntSlider if isinstance(step, int) else widgets.FloatSlider
    return kind(value, min=low, max=high, step=step, description=description, continuous_update=continuous)


def choice(description: str, options: Any, value: Any = None) -> Any:
    """A drop-down menu: options as a sequence, or (label, value) pairs."""
    options = list(options)
    first = options[0][1] if isinstance(options[0], tuple) else options[0]
    return widgets.Dropdown(options=options, value=first if value is None else value, description=description)


def number(description: str, value: float) -> Any:
    """A field for any number, also one that makes no sense: then the message line says so."""
    return widgets.FloatText(value, description=description, continuous_update=False)


def text(description: str, value: str) -> Any:
    """A field for text, taken when it is left or Enter is pressed."""
    return widgets.Text(value, description=description, continuous_update=False)
