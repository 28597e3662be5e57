"""Task files: GSM8K's, and any other JSONL of the same shape.

A task is a list of `Problem`. GSM8K's own format is one JSON object a line, with the keys `question` and
`answer`, where the answer is a rationale that ends in `#### N`. Every line is checked when a file is read, and a
bad one is an error that names the file and the line: a dropped problem would change every figure computed
from the set.

    >>> parse_ground_truth("Half of 24 is <<24/2=12>>12.\\n#### 1,012")
    '1012'
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from grpo.grading import parse_number

GSM8K_URL = "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data"
GSM8K_SHA256 = {
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}
_ATTEMPTS = 3
_TIMEOUT_S = 30.0


class FetchError(RuntimeError):
    """A download that did not end with the right file in place. The message says what to do about it."""


@dataclass(frozen=True)
class Problem:
    """One task: a question and its answer.

    Attributes:
        question: what the model is asked.
        answer: the rationale, ending in `#### N`.
        ground_truth: the text after `####`, commas removed: what graders compare with.
        level: a name for the difficulty, "" where the source has none.
    """

    question: str
    answer: str
    ground_truth: str
    level: str = ""


def parse_ground_truth(answer: str) -> str:
    """Return the text after the last `####` of a GSM8K answer, commas removed and stripped.

    Raises:
        ValueError: there is no `####`, or nothing after it.
    """
    _, marker, tail = answer.rpartition("####")
    if not marker:
        raise ValueError(f"answer has no '####' before its result; it ends in {answer[-60:]!r}")
    ground_truth = tail.replace(",", "").strip()
    if not ground_truth:
        raise ValueError(f"answer has nothing after '####'; it ends in {answer[-60:]!r}")
    return ground_truth


def _text_field(record: dict[str, Any], key: str) -> str:
    """Return `record[key]`, a non-empty text that can be encoded; raise ValueError otherwise."""
    if key not in record:
        raise ValueError(f"key {key!r} is missing; the keys are {sorted(record)}")
    value = record[key]
    if not isinstance(value, str):
        raise ValueError(f"{key!r} must be a string, not {type(value).__name__}: {value!r:.80}")
    if not value.strip():
        raise ValueError(f"{key!r} is empty")
    if re.search("[\ud800-\udfff]", value):
        raise ValueError(f"{key!r} holds half of a surrogate pair, which no tokenizer can encode: {value!r:.80}")
    return value


def _problem_from_line(line: bytes, question_key: str, answer_key: str) -> Problem:
    """Parse one line of a task file; raise ValueError that says what is wrong with it."""
    if not line.strip():
        raise ValueError("the line is blank")
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}") from None
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"must be a JSON object, not {type(record).__name__}: {record!r:.80}")
    question, answer = _text_field(record, question_key), _text_field(record, answer_key)
    level = record.get("level", "")
    return Problem(question, answer, parse_ground_truth(answer), level if isinstance(level, str) else str(level))


def load_jsonl(
    path: str | Path,
    question_key: str = "question",
    answer_key: str = "answer",
    *,
    numeric: bool = False,
    limit: int | None = None,
) -> list[Problem]:
    """Read task problems from a JSONL file: the adapter for sources of GSM8K's shape under other key names.

    Args:
        path: a UTF-8 file, one JSON object a line; the answer ends in `#### N`. A `level` key is kept.
        question_key: name of the key that holds the question.
        answer_key: name of the key that holds the answer.
        numeric: also refuse a ground truth that is not one number (no response to it could be graded right
            as a number).
        limit: keep the first `limit` problems; all lines are checked all the same.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is bad (the message starts with file and line number), no line, or limit < 1.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit!r} must be at least 1, or None for all")
    if not path.is_file():
        raise FileNotFoundError(f"no task file at {path.absolute()}")
    lines = path.read_bytes().split(b"\n")
    if lines[-1] == b"":
        lines.pop()  # what follows the last newline is no line
    if not lines:
        raise ValueError(f"{path} is empty: expected one JSON object a line")
    problems = []
    for number, line in enumerate(lines, start=1):
        try:
            problem = _problem_from_line(line, question_key, answer_key)
            if numeric and parse_number(problem.ground_truth) is None:
                raise ValueError(f"the text after '####' is not a number: {problem.ground_truth!r:.80}")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        problems.append(problem)
    return problems[:limit]


def gsm8k_dir(data_dir: str | Path | None = None) -> Path:
    """Return the folder of GSM8K's files: `data_dir`, else $GRPO_DATA_DIR, else `data/gsm8k`.

    `data/gsm8k` is looked for in the current folder and then in the checkout that this module lies in; where
    neither has it, the checkout's is returned (the current folder's for an installed package).
    """
    if data_dir is not None:
        return Path(data_dir)
    if from_env := os.environ.get("GRPO_DATA_DIR"):
        return Path(from_env)
    here, root = Path.cwd() / "data" / "gsm8k", Path(__file__).resolve().parent.parent
    checkout = root / "data" / "gsm8k"
    in_checkout = (root / "pyproject.toml").is_file()
    return here if here.is_dir() or not in_checkout else checkout


def _where_to_put(target: Path) -> str:
    """Say where each GSM8K file belongs, where it comes from and what its hash is."""
    rows = [
        f"  {(target / f'{split}.jsonl').absolute()}\n    from {GSM8K_URL}/{split}.jsonl\n    sha256 {digest}"
        for split, digest in GSM8K_SHA256.items()
    ]
    return "\n".join(rows)


def load_gsm8k(split: str, data_dir: str | Path | None = None, limit: int | None = None) -> list[Problem]:
    """Load one split of GSM8K (train: 7,473 problems; test: 1,319), in the order of the file.

    Args:
        split: "train" or "test".
        data_dir: folder of train.jsonl and test.jsonl; None: see `gsm8k_dir`.
        limit: keep the first `limit` problems; None: all.

    Raises:
        ValueError: unknown split, or a bad line (named by file and line number).
        FileNotFoundError: the file is missing; the message says where it belongs and how to fetch it.
    """
    if split not in GSM8K_SHA256:
        raise ValueError(f"unknown split={split!r}; known: {sorted(GSM8K_SHA256)}")
    folder = gsm8k_dir(data_dir)
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        raise FileNotFoundError(
            f"no GSM8K {split} file at {path.absolute()}. `grpo data fetch gsm8k` downloads both files; "
            "or set GRPO_DATA_DIR to a folder that has them; or put them there by hand:\n" + _where_to_put(folder)
        )
    return load_jsonl(path, numeric=True, limit=limit)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download_once(url: str, part: Path, progress: bool) -> None:
    """Append what `part` lacks of `url` to it, or write it anew if the server does not resume.

    Raises:
        OSError, http.client.HTTPException: the transfer failed; `part` keeps what arrived.
    """
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the part is longer than the file: it is not a part of it
            part.unlink()
            raise ConnectionResetError("the server could not resume; starting anew") from None
        raise
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if response.status == 206 and not resumed:
            raise ConnectionError(f"the server sent a range not asked for: {response.headers.get('Content-Range')!r}")
        start = have if resumed else 0
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isascii() and length.isdigit() else None
        with (
            part.open("ab" if resumed else "wb") as file,
            tqdm(total=total, initial=start, unit="B", unit_scale=True, desc=part.stem, disable=not progress) as bar,
        ):
            while chunk := response.read(1 << 16):
                file.write(chunk)
                bar.update(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    size = part.stat().st_size
    if total is not None and size < total:
        raise ConnectionError(f"the transfer ended after {size} of {total} bytes")


def _not_fetched(url: str, path: Path, failure: Exception | None) -> FetchError:
    part = path.with_name(path.name + ".part")
    kept = f" What arrived is in {part.absolute()}; the next run resumes it." if part.is_file() else ""
    return FetchError(
        f"could not download {url}: {failure}.{kept} Without a connection, put the files here by hand:\n"
        f"{_where_to_put(path.parent)}"
    )


def _fetch_file(url: str, path: Path, digest: str, progress: bool) -> None:
    """Put the file at `url`, whose sha256 is `digest`, at `path`, by way of `path`.part."""
    part = path.with_name(path.name + ".part")
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        # An earlier run may have been stopped between the last byte and the rename.
        if part.is_file() and _sha256(part) == digest:
            break
        try:
            _download_once(url, part, progress)
            break
        except (OSError, http.client.HTTPException) as error:
            failure = error
            if isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500:
                raise _not_fetched(url, path, failure) from None  # asking again gives the same answer
    else:
        raise _not_fetched(url, path, failure) from None
    if (got := _sha256(part)) != digest:
        part.unlink()
        raise FetchError(
            f"{url} has sha256 {got}, expected {digest}: the download was deleted. Run the command again; "
            f"if it fails again, put the files here by hand:\n{_where_to_put(path.parent)}"
        )
    os.replace(part, path)


def fetch_gsm8k(target: str | Path | None = None, base_url: str = GSM8K_URL, progress: bool = True) -> Path:
    """Download GSM8K's two files, check them, and return the folder they are in.

    Each file goes to `<name>.part` first, resumes from what an earlier try left there, and is renamed into
    place only when its sha256 is right. Files that are already right are left alone; others are replaced.

    Args:
        target: folder for train.jsonl and test.jsonl; None: see `gsm8k_dir`.
        base_url: http(s) address of the folder that has the two files.
        progress: show a bar for each file.

    Raises:
        ValueError: base_url is not an http(s) address.
        FetchError: no connection, or the wrong content; the message says where to put the files by hand.
    """
    if not base_url.startswith(("https://", "http://")):
        raise ValueError(f"base_url={base_url!r} must start with https:// (or http://)")
    folder = gsm8k_dir(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(f"target={str(folder)!r} cannot be made ({error}); give another folder") from error
    for split, digest in GSM8K_SHA256.items():
        path = folder / f"{split}.jsonl"
        if not (path.is_file() and _sha256(path) == digest):
            _fetch_file(f"{base_url.rstrip('/')}/{split}.jsonl", path, digest, progress)
    return folder
