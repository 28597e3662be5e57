"""Take the live views of widgets out of executed notebooks: python tests/notebooks/strip_widgets.py NOTEBOOK ...

A view needs the kernel that made it; opened later it reads "model not found". The still picture in the same output stays.
"""

import sys

import nbformat

VIEW = "application/vnd.jupyter.widget-view+json"


def strip(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove every widget view, and the state that widgets left in the notebook's metadata."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(VIEW, None)
    return notebook


if __name__ == "__main__":
    for path in sys.argv[1:]:
        nbformat.write(strip(nbformat.read(path, 4)), path)
