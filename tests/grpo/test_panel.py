import subprocess
import sys
import threading

import pytest
from matplotlib.figure import Figure

from grpo.panel import Panel, choice, number, slider, text


class Reciprocal(Panel):
    """The smallest widget: 1/x as a bar, or as HTML."""

    def __init__(self, x: float = 2.0) -> None:
        super().__init__({"x": number("x", x), "shape": choice("shape", ["figure", "html"])})

    def compute(self, x: float, shape: str) -> tuple[float, str]:
        if x < 0:
            raise ValueError(f"x={x} must be at least <0>")
        return 1 / x, shape

    def draw(self, data: tuple[float, str]) -> Figure | str:
        value, shape = data
        if shape == "html":
            return f"<b>{value}</b>"
        figure = Figure(figsize=(1, 1))
        figure.subplots().set_title(f"{value:.2f}")
        return figure

    def describe(self, data: tuple[float, str]) -> str:
        return f"1/x is <{data[0]:g}>"


def test_a_change_is_computed_drawn_and_put_into_words():
    panel = Reciprocal()
    before = panel._image.value
    assert bytes(before[:4]) == b"\x89PNG"
    panel.controls["x"].value = 4.0
    assert panel.data == (0.25, "figure")
    assert panel.state == {"x": 4.0, "shape": "figure"}
    assert panel._image.value != before
    assert "1/x is &lt;0.25&gt;" in panel._words.value


def test_html_takes_the_place_of_the_image():
    panel = Reciprocal()
    panel.set(shape="html")
    assert panel._image.value == b""
    assert panel._image.layout.display == "none"
    assert "<b>0.5</b>" in panel._html.value
    assert panel._words.value == ""
    assert panel.picture().bundle == {"text/plain": "1/x is <0.5>", "text/html": panel._html.value}
    panel.set(shape="figure")
    assert panel._html.value == ""
    assert panel._image.layout.display is None
    assert set(panel.picture().bundle) == {"text/plain", "image/png"}


@pytest.mark.parametrize(
    ("x", "message"),
    [(-1.0, "x=-1.0 must be at least &lt;0&gt;"), (0.0, "ZeroDivisionError: ")],
    ids=["value", "fault"],
)
def test_what_fails_keeps_the_last_picture_and_is_explained(x, message):
    panel = Reciprocal()
    before = panel._image.value
    panel.controls["x"].value = x
    assert message in panel._message.value
    assert "the last setting that worked" in panel._message.value
    assert (panel._image.value, panel.state["x"], panel.data) == (before, 2.0, (0.5, "figure"))
    panel.controls["x"].value = 1.0
    assert panel._message.value == panel.problem == ""
    assert panel.data == (1.0, "figure")


def test_changes_from_several_threads_are_taken_one_after_the_other():
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Reciprocal):
        def compute(self, x, shape):
            if x == 4:
                entered.set()
                assert go_on.wait(10)
            return super().compute(x, shape)

    panel = Slow()
    first, second = (threading.Thread(target=setattr, args=(panel.controls["x"], "value", x)) for x in (4.0, -1.0))
    first.start()
    assert entered.wait(10)
    second.start()
    second.join(0.3)  # time to come in between, were there no lock
    go_on.set()
    first.join(10)
    second.join(10)
    assert panel.state["x"] == 4.0
    assert "x=-1.0" in panel.problem
    assert "x=-1.0" in panel._message.value  # what the control says now, not what took longest


def test_a_panel_that_cannot_start_says_why():
    with pytest.raises(ValueError, match=r"x=-1\.0 must be at least <0>"):
        Reciprocal(-1.0)


def test_a_notebook_gets_the_live_view_and_the_still_picture():
    bundle = Reciprocal()._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert bundle["text/plain"] == "1/x is <0.5>"


def test_every_html_has_its_own_background_and_text_colour():
    panel = Reciprocal()
    panel.set(shape="html")
    panel.set(x=-1.0)
    for part in (panel._html, panel._message, Reciprocal()._words):
        assert "background:#" in part.value
        assert ";color:#" in part.value


def test_controls():
    assert slider("n", 3, 1, 5, 1).value == 3
    assert slider("b", 0.5, 0.0, 1.0, 0.1, continuous=False).continuous_update is False
    assert choice("d", [("a b", "a_b"), ("c", "c")]).value == "a_b"
    assert choice("d", {"x": 1, "y": 2}, "y").value == "y"
    assert text("t", "1 0").value == "1 0"


def test_the_packages_do_not_need_ipywidgets_and_the_widgets_say_what_is_missing():
    code = """
import sys
sys.modules["ipywidgets"] = None
import grpo, toyrl, toyrl.labs, toyrl.training_lab, grpo.compare
for name in ("toyrl.widgets", "grpo.widgets"):
    try:
        __import__(name)
    except ImportError as error:
        assert 'pip install "grpo-lab[lab]"' in str(error), error
    else:
        raise AssertionError(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
