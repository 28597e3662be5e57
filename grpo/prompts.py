"""Prompt templates by name: a file, its stop strings and its reward function.

A template is a text file `<name>.prompt` in which `{question}` stands once, for the question. The files lie in
`prompts/` of the checkout, and in the wheel. One that ends in `<think>` is of the r1_zero kind: generation stops at
`</answer>` and the tags are graded. Any other runs until the model ends, and its `\\boxed{}` is graded.

    >>> prompt = load_prompt("r1_zero")
    >>> prompt.render("What is {1, 2}?").splitlines()[-2:]
    ['User: What is {1, 2}?', 'Assistant: <think>']
    >>> prompt.stop
    ('</answer>',)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo.grading import question_only_reward_fn, r1_zero_reward_fn

_SLOT = "{question}"


@dataclass(frozen=True)
class Prompt:
    """A template with what belongs to it.

    Attributes:
        name: the file's name without `.prompt`.
        template: the text, with `{question}` once; a final newline of the file is no part of it.
        stop: strings that end a response and are kept in it.
        reward_fn: (response, ground_truth) -> {"reward", "format_reward", "answer_reward"}.
    """

    name: str
    template: str
    stop: tuple[str, ...]
    reward_fn: Callable[..., dict[str, float]]

    def render(self, question: str) -> str:
        """Return the template with the question in its place; nothing in the question is interpreted."""
        before, _, after = self.template.partition(_SLOT)
        return before + question + after


def _folder() -> Path:
    """Return the folder of the templates: in the wheel beside this module, in a checkout one level up."""
    packaged = Path(__file__).resolve().parent / "_prompts"
    return packaged if packaged.is_dir() else packaged.parent.parent / "prompts"


def prompt_names() -> list[str]:
    """Return the names of the templates that come with grpo, sorted."""
    return sorted(path.stem for path in _folder().glob("*.prompt"))


def load_prompt(name: str) -> Prompt:
    """Load a template by its name, or from a path to a `.prompt` file.

    Raises:
        ValueError: unknown name (the message lists the known ones), or a template without exactly one `{question}`.
        FileNotFoundError: `name` ends in `.prompt` and there is no such file.
    """
    if name.endswith(".prompt"):
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(f"no prompt file at {path.absolute()}; known names: {prompt_names()}")
    elif name in (known := prompt_names()):
        path = _folder() / f"{name}.prompt"
    else:
        raise ValueError(f"unknown prompt name={name!r}; known: {known}, or a path to a .prompt file")
    try:
        template = path.read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    if (count := template.count(_SLOT)) != 1:
        raise ValueError(f"{path} must have {_SLOT} exactly once, not {count} times")
    if template.rstrip().endswith("<think>"):  # a space or blank line after it makes no other kind of it
        return Prompt(path.stem, template, ("</answer>",), r1_zero_reward_fn)
    return Prompt(path.stem, template, (), question_only_reward_fn)
