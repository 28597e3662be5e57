r"""Answer extraction, equality and the two reward functions.

A reward function takes a response and a ground truth and returns three floats, each 0 or 1:

    >>> r1_zero_reward_fn(" 6+12 is 18. </think> <answer> $18.00 </answer>", "18")
    {'reward': 1.0, 'format_reward': 1.0, 'answer_reward': 1.0}
    >>> question_only_reward_fn(r"So it is \boxed{17}.", "18")
    {'reward': 0.0, 'format_reward': 1.0, 'answer_reward': 0.0}

`reward` is what training pays, and it is the answer's alone; the format is logged. Answers are compared as exact
rationals. A model under training searches for whatever is paid, so the text is treated as hostile: nothing is
evaluated, nothing recurses, every pattern takes linear time, and what could be read in two ways is no number.
`strict=True` accepts a number alone; `symbolic=True` asks math-verify about what is not a number.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from itertools import islice

from grpo.symbolic import symbolically_equal

MAX_ANSWER_CHARS = 512
_MAX_EXPONENT = 1000
_MAX_NUMBERS = 16  # in one answer, all equal; more is babble, and each costs time

# ---- extraction ----------------------------------------------------------------------------------------------

_R1_OPENING = re.compile(r"</think>(?P<gap>\s*)<answer>")
# Up to three backslashes: models that learned from JSON and Python source write `\\boxed{`.
_BOX_OR_BRACE = re.compile(r"\\{1,3}boxed\s{0,8}\{|\\.|[{}]", re.DOTALL)


def _r1_zero_answer_span(response: str, strict: bool) -> str | None:
    """Return the text between the answer tags as it stands, None where the format is wrong."""
    head, closing, _ = response.partition("</answer>")
    opening = _R1_OPENING.search(head) if closing else None
    if opening is None or (strict and opening["gap"] != " "):
        return None
    answer = head[opening.end() :]
    return answer if answer.strip() else None


def _boxed_answer_span(response: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}` as it stands, None where there is none or it is blank."""
    open_braces: list[int | None] = []  # where the content of a box starts; None for any other brace
    last: str | None = None
    for match in _BOX_OR_BRACE.finditer(response):
        token = match.group()
        if token == "{":
            open_braces.append(None)
        elif token == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None:
                # An outer box closes after those inside it, so that `\boxed{17 or \boxed{18}}` is judged whole.
                last = response[start : match.start()]
        elif token[-1] == "{" and "boxed" in token:
            open_braces.append(match.end())
    return last if last is not None and last.strip() else None


def extract_r1_zero_answer(response: str, strict: bool = False) -> str | None:
    """Return the stripped answer of an r1_zero response, None where the format is wrong.

    The response is cut at the first `</answer>` (none: None). In what is left, `</think>`, optional white space,
    `<answer>` and some text must stand in that order; the first such place counts, so that a second opening tag
    is part of the answer.

    Args:
        response: what the model wrote after the prompt's `<think>`.
        strict: accept exactly one space between `</think>` and `<answer>`.
    """
    answer = _r1_zero_answer_span(response, strict)
    return None if answer is None else answer.strip()


def extract_boxed_answer(response: str) -> str | None:
    r"""Return the stripped content of the last closed `\boxed{...}`, None where there is none or it is blank.

    Nested braces are respected and `\{`, `\}` do not count as braces. Of a box within a box the outer one counts.
    """
    answer = _boxed_answer_span(response)
    return None if answer is None else answer.strip()


# ---- numbers -------------------------------------------------------------------------------------------------

_SIGN = "[-+\u2212]"
_CURRENCY_SIGNS = "$¢£¤¥฿₠-₿＄￡￥"
_CURRENCY = (
    rf"(?:(?:US|AU|CA|NZ|HK|[ACSR])?\\?[{_CURRENCY_SIGNS}]"
    r"|(?<![^\W\d_])(?:USD|EUR|GBP|JPY|CNY|RMB|INR|AUD|CAD|NZD|CHF|HKD|SGD|MXN|BRL|KRW|SEK|NOK|DKK|ZAR|Rs\.?))"
)
# Groups of three after a first group of one to three; one kind of separator throughout. `0,500` may be meant as a
# half, so a leading zero makes no group.
_GROUPED = r"[1-9][0-9]{0,2}(?P<sep>,|[ \u00a0\u2009\u202f])[0-9]{3}(?:(?P=sep)[0-9]{3})*"
_INTEGER = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]++)"
_NUMBER = re.compile(
    rf"""
    (?P<sign>{_SIGN}[ ]?)? (?P<currency>{_CURRENCY}[ ]?)? (?P<inner_sign>{_SIGN})?
    (?: (?P<whole>{_INTEGER}) [ ]{{1,4}} (?P<part>[0-9]++)/(?P<of>[0-9]++)
      | (?P<numerator>{_INTEGER}) [ ]?/[ ]? (?P<denominator>{_INTEGER})
      | (?P<decimal>(?:{_GROUPED}|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++) (?:[eE](?P<exponent>[-+\u2212]?[0-9]++))?
    )""",
    re.VERBOSE,
)
_STRICT_NUMBER = re.compile(
    rf"{_SIGN}?\\?\$?{_SIGN}?(?:{_INTEGER}[ ]{{1,4}}[0-9]++/[0-9]++"
    rf"|(?:{_GROUPED}|[0-9]++)(?:\.[0-9]++)?(?:[eE]{_SIGN}?[0-9]++)?|\.[0-9]++(?:[eE]{_SIGN}?[0-9]++)?)"
    r"(?:[ ]?\\?%)?"
)
_BRACED_COMMA = re.compile(r"(?<=[0-9])\{,\}(?=[0-9])")

# Emphasis stands outside of words and hugs what it encloses; every other asterisk is an operator: `9**9`.
_EMPHASIS = re.compile(r"(?<![\w)\]}*])(\*{1,3}|__)(?=[^\s*_])([^*_]++)(?<=\S)\1(?![\w(\[{*])")
_WRAPPER = re.compile(
    r"\\{1,2}(?:boxed|fbox|text|textbf|textit|mathrm|mathbf|mbox)\s{0,8}\{|\\[()\[\]]|\\(?:left|right)\b|`"
)
_SPACING = re.compile(r"\\(?:[,;:! ]|q?quad\b)")
_FRACTION = re.compile(
    r"(?:(?P<before>[0-9])\s{0,4})?\\[dtc]?frac\s{0,4}"
    r"(?:\{\s{0,4}(?P<top>[0-9]++)\s{0,4}\}\s{0,4}\{\s{0,4}(?P<bottom>[0-9]++)\s{0,4}\}"
    r"|(?P<digit>[0-9])\s{0,4}(?P<digit2>[0-9]))(?![0-9])"
)
_DEGREES = re.compile(r"\^\s{0,2}(?:\\circ\b|\{\s{0,2}\\circ\s{0,2}\})")
_AREA_OR_VOLUME = re.compile(
    r"(?<![^\W\d_])((?:[cdkm]?m|ft|in|yd|mi|feet|foot|inch|inches|yards?|miles?|met(?:er|re)s?|units?)\}?)"
    r"(?:\^[23](?![0-9])|\^\{[23]\}|[²³])"
)
# Words and suffixes that make another number of the one beside them.
_CHANGES_NEXT = re.compile(
    r"(?:\b(?:negative|minus|plus|twice|thrice|double|triple|half(?:\s+of)?|root\s+of|log"
    r"|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million)|[负負])\s*[(\"']?$",
    re.IGNORECASE,
)
_CHANGES_PREVIOUS = re.compile(
    r"\s?(?:[KMB]|bn|mn|[万亿千百十億萬兆])(?![^\W\d_])|k(?![^\W\d_])|\s*(?:[xX×π]|[Pp][Ii])(?![^\W\d_])"
    r"|[\s-]*(?i:hundred|thousand|million|billion|trillion|lakh|crore|squared|cubed|factorial)"
    r"|\s+and\s+(?:a|one|two|three)[\s-]+(?:half|halves|third|quarter|fourth|fifth)"
)
_WINDOW = 40
_OPENERS = " \n\t([{$\"'"
_CLOSES_NUMBER = frozenset("0123456789)]}%")
_COMBINES = re.compile(r"\b(?:x|times|plus|minus|over|by|divided|multiplied|of|to|per|mod)\b", re.IGNORECASE)
# Letters and their marks, currency, and other symbols, which emoji are.
_WORD_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Sc", "So"})
_PLAIN_CHARS = frozenset(" .,:;!?()[]{}\"'“”‘’„«»-–—#/&…•°%′″、。，：；！？（）「」【】" + "$¢£¤¥฿＄￡￥")


def _integer(text: str) -> int:
    return int(re.sub(r"[^0-9]", "", text))


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the value of a `_NUMBER` match, None for two signs, a zero denominator or a huge exponent."""
    signs = [match[name] for name in ("sign", "inner_sign") if match[name]]
    if len(signs) > 1:
        return None
    if match["whole"] is not None:
        part, of = _integer(match["part"]), _integer(match["of"])
        if part >= of:  # `5 36/2` is two numbers side by side, not a mixed number
            return None
        size = _integer(match["whole"]) + Fraction(part, of)
    elif match["numerator"] is not None:
        denominator = _integer(match["denominator"])
        if denominator == 0:
            return None
        size = Fraction(_integer(match["numerator"]), denominator)
    else:
        exponent = int((match["exponent"] or "0").replace("\u2212", "-"))
        if abs(exponent) > _MAX_EXPONENT:  # before the power is computed
            return None
        digits, _, decimals = match["decimal"].partition(".")
        size = Fraction(_integer(digits + decimals), 10 ** len(decimals)) * Fraction(10) ** exponent
    return -size if signs and signs[0][0] != "+" else size


def _cleaned(text: str) -> str | None:
    """Take Markdown, LaTeX wrapping and the left side of an equation off; None where that shows two answers.

    What is taken off leaves a newline behind, which joins nothing: `1\text{000}` must not become 1000.
    """
    text = _EMPHASIS.sub("\n\\2\n", text)
    left, equals, text = text.rpartition("=")
    if equals and (left[-1:] in {"<", ">", "!", "~"} or re.search(r"\bor\b", left, re.IGNORECASE)):
        return None
    text = re.sub(r"\\([$%#&])", r"\1", text)
    text = _BRACED_COMMA.sub(",", text)
    text = re.sub(r"(?<=[0-9])\\,(?=[0-9]{3})", "\u2009", text)
    text = _SPACING.sub("\n", text)
    if len(re.findall(r"frac", text)) > 1:  # side by side they would be a product
        return None
    text = _FRACTION.sub(
        lambda m: (
            (m["before"] + " " if m["before"] else "") + (m["top"] or m["digit"]) + "/" + (m["bottom"] or m["digit2"])
        ),
        text,
    )
    text = _DEGREES.sub("°", text)
    text = _AREA_OR_VOLUME.sub(r"\1", text)
    return _WRAPPER.sub("\n", text)


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    """Say whether what touches a number leaves it the number that it is."""
    start, end = match.span()
    touching = text[start - 1 : start]
    if touching and (
        touching in "0123456789.,/^_\\" or (touching.isalpha() and unicodedata.category(touching) != "Lo")
    ):
        return False
    # Windows, since a text may hold hundreds of numbers and each is looked at with its surroundings.
    before, after = text[:start].rstrip()[-_WINDOW:], text[end : end + _WINDOW]
    dash_before = before.rstrip(" $\n")[-1:] in {"-", "–", "—", "\u2212", "+"}
    if dash_before or re.search(r"\w\($", before):  # `--5`, `–5`, `f(18)`
        return False
    if match["sign"] or (match["inner_sign"] and not match["currency"]):
        if (match["sign"] or "").endswith(" ") and text[:start].strip(_OPENERS):  # `Total - 18`: a dash or a minus?
            return False
        if before[-1:] in _CLOSES_NUMBER:  # a difference or a sum
            return False
    if re.match(r"[0-9]|[.,:/'][0-9]|/\s*[0-9(]", after) or unicodedata.category(after[:1] or " ")[0] == "M":
        return False
    return not (_CHANGES_NEXT.search(before) or _CHANGES_PREVIOUS.match(after))


def _parse_in_words(text: str) -> Fraction | None:
    """Parse the one number in a text that may hold words, units, Markdown and LaTeX."""
    cleaned = _cleaned(text)
    if cleaned is None:
        return None
    matches = list(islice(_NUMBER.finditer(cleaned), _MAX_NUMBERS + 1))
    if len(matches) > _MAX_NUMBERS:
        return None
    values = {_value(match) for match in matches}
    if len(values) != 1 or not all(_stands_alone(cleaned, match) for match in matches):
        return None
    ends = [0, *(match.end() for match in matches)]
    starts = [*(match.start() for match in matches), len(cleaned)]
    pieces = [cleaned[end:start] for end, start in zip(ends, starts, strict=True)]
    for char in "".join(pieces):
        if char not in _PLAIN_CHARS and not char.isspace() and unicodedata.category(char)[:2] not in _WORD_CATEGORIES:
            return None
    for between in pieces[1:-1]:  # the same number again: `18 (18)` repeats it, `9 x 9` computes with it
        if not re.search(r"[\s,;]", between) or _COMBINES.search(between) or between.strip() in {":", "/", "&", "-"}:
            return None
    if pieces[-1].startswith("!") and not any(char.isalpha() for char in pieces[0]):  # `5!`
        return None
    return values.pop()


def _parse_alone(text: str) -> Fraction | None:
    """Parse a text that is a number and nothing else: the strict rule."""
    text = text.strip().removesuffix(".")
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip()
    if text.startswith(r"\boxed{") and text.endswith("}"):
        text = text[len(r"\boxed{") : -1].strip().removesuffix(".")
    text = _BRACED_COMMA.sub(",", text)
    if not _STRICT_NUMBER.fullmatch(text):
        return None
    return _parse_in_words(text)


def parse_number(text: str, strict: bool = False) -> Fraction | None:
    r"""Return the one number that a text states, exactly; None where it states none, or several different ones.

    Read as numbers: `18`, `-5`, `1,000`, `1{,}000`, `1 000`, `18.00`, `.5`, `36/2`, `\frac{36}{2}`, `5 1/2`, `1e3`.
    Around the number may stand white space, Markdown emphasis, backticks, `$`, currency signs and codes, `\boxed{}`,
    `\text{}`, `\( \)`, `%`, units and other words; of an equation the right side of the last `=` counts. The percent
    sign does not divide by 100. No numbers: sums, products, powers, ranges, clock times, number words, `18 million`,
    digits other than 0 to 9, more than 512 characters, and whatever could be read in two ways.

    Args:
        text: an answer as `extract_r1_zero_answer` or `extract_boxed_answer` gives it.
        strict: accept a number alone (`$`, separators, `%`, decimals, mixed numbers, `1e3`, `\boxed{}`, a final
            full stop), with the same value.
    """
    if len(text) > MAX_ANSWER_CHARS:
        return None
    return _parse_alone(text) if strict else _parse_in_words(text)


# ---- verdicts ------------------------------------------------------------------------------------------------


def answers_equal(answer: str, gold: str, strict: bool = False, symbolic: bool = False) -> bool:
    """Say whether an answer is right. Any two strings have a verdict; nothing is raised on their account.

    Two numbers are compared as exact rationals. Where the ground truth is not a number, the answer must be the
    same text up to white space.

    Args:
        answer: what the model answered; more than 512 characters are wrong.
        gold: the ground truth, always read by the wide rule.
        strict: read the answer by the narrow rule of `parse_number`.
        symbolic: ask math-verify, in a worker process with a time limit, where one of the two is not a number.

    Raises:
        RuntimeError: symbolic=True and the worker process does not start.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        return False
    gold_value = parse_number(gold)
    value = parse_number(answer)
    if gold_value is not None and value is not None:
        return value == gold_value and (not strict or parse_number(answer, strict=True) is not None)
    if gold_value is None and answer.split() == gold.split() and answer.split():
        return True
    return symbolic and symbolically_equal(answer, gold)


def _verdict(answer: str | None, ground_truth: str, strict: bool, symbolic: bool) -> dict[str, float]:
    right = answer is not None and answers_equal(answer, ground_truth, strict=strict, symbolic=symbolic)
    return {
        "reward": float(right),
        "format_reward": float(answer is not None),
        "answer_reward": float(right),
    }


def r1_zero_reward_fn(
    response: str, ground_truth: str, *, strict: bool = False, symbolic: bool = False
) -> dict[str, float]:
    """Grade a response to an r1_zero prompt, as if generation had stopped at the first `</answer>`.

    Args:
        response: what the model wrote after the prompt's `<think>`.
        ground_truth: the right answer.
        strict: the narrow rule, for the format (`</think> <answer>` literally) and for the number alone.
        symbolic: see `answers_equal`.

    Returns:
        `reward`, `format_reward` and `answer_reward`, each 0.0 or 1.0. The reward is 1 for a right answer in the
        right format; a right format with a wrong answer earns 0.
    """
    return _verdict(_r1_zero_answer_span(response, strict), ground_truth, strict, symbolic)


def question_only_reward_fn(
    response: str, ground_truth: str, *, strict: bool = False, symbolic: bool = False
) -> dict[str, float]:
    r"""Grade a response that gives its answer in `\boxed{}`; the last closed box counts.

    Arguments and result as for `r1_zero_reward_fn`; the format is right when there is a box with something in it.
    """
    return _verdict(_boxed_answer_span(response), ground_truth, strict, symbolic)
