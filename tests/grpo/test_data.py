from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grpo import data
from grpo.data import FetchError, Problem, fetch_gsm8k, gsm8k_dir, load_gsm8k, load_jsonl, parse_ground_truth

GOOD = {"question": "How many?", "answer": "6+12 = <<6+12=18>>18.\n#### 1,018"}


def write(path: Path, *lines: Any) -> Path:
    """Write lines, each a text, bytes or something to be written as JSON."""
    encoded = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path


# ---- reading -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "ground_truth"),
    [("so\n#### 18", "18"), ("#### 1,234,567 ", "1234567"), ("####-5", "-5"), ("a #### 1\nb #### 2", "2")],
)
def test_ground_truth_is_the_text_after_the_marker(answer, ground_truth):
    assert parse_ground_truth(answer) == ground_truth


@pytest.mark.parametrize("answer", ["18", "", "### 18", "so\n####", "so\n####  \n", "#### ,"])
def test_answer_without_a_result_is_refused(answer):
    with pytest.raises(ValueError, match="'####'"):
        parse_ground_truth(answer)


def test_loads_problems_in_order(tmp_path):
    write(tmp_path / "test.jsonl", GOOD, {**GOOD, "answer": "#### 2", "level": "hard"}, {**GOOD, "answer": "#### 3"})
    problems = load_gsm8k("test", tmp_path)
    assert problems[0] == Problem("How many?", GOOD["answer"], "1018")
    assert [(p.ground_truth, p.level) for p in problems] == [("1018", ""), ("2", "hard"), ("3", "")]
    assert load_gsm8k("test", tmp_path, limit=2) == problems[:2]
    assert load_gsm8k("test", tmp_path, limit=9) == problems


def test_last_line_needs_no_newline_and_crlf_is_fine(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\r\n" + json.dumps(GOOD).encode())
    assert len(load_gsm8k("test", tmp_path)) == 2


def test_unicode_line_separators_do_not_split_a_line(tmp_path):
    write(tmp_path / "test.jsonl", json.dumps({**GOOD, "question": "a\u2028b\x0bc\x85d"}, ensure_ascii=False))
    assert [p.question for p in load_gsm8k("test", tmp_path)] == ["a\u2028b\x0bc\x85d"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "not valid JSON"),
        (b'{"question": "\xff", "answer": "#### 1"}', "not UTF-8"),
        ("", "the line is blank"),
        ("[" * 100_000, "nested too deep"),
        ("[1, 2]", "must be a JSON object, not list"),
        ("null", "must be a JSON object, not NoneType"),
        ({"answer": "#### 1"}, r"key 'question' is missing; the keys are \['answer'\]"),
        ({"question": "q"}, "key 'answer' is missing"),
        ({"question": 5, "answer": "#### 1"}, "'question' must be a string, not int: 5"),
        ({"question": "q", "answer": None}, "'answer' must be a string, not NoneType"),
        ({"question": " \n", "answer": "#### 1"}, "'question' is empty"),
        ({"question": "q", "answer": ""}, "'answer' is empty"),
        ({"question": "q", "answer": "18"}, "no '####'"),
        ({"question": "q", "answer": "so\n####"}, "nothing after '####'"),
        ({"question": "q", "answer": "#### eighteen"}, "not a number: 'eighteen'"),
        ({"question": "q", "answer": "#### 17 or 18"}, "not a number"),
        ('{"question": "\\ud800", "answer": "#### 1"}', "surrogate"),
        (json.dumps(GOOD)[:-9], "not valid JSON"),
    ],
)
@pytest.mark.parametrize("limit", [None, 1])
def test_a_bad_line_is_named_and_nothing_is_dropped(tmp_path, line, message, limit):
    path = write(tmp_path / "train.jsonl", GOOD, GOOD, line, GOOD)
    with pytest.raises(ValueError, match=message) as caught:
        load_gsm8k("train", tmp_path, limit=limit)
    assert str(caught.value).startswith(f"{path}, line 3: ")


def test_an_empty_file_is_refused(tmp_path):
    write(tmp_path / "train.jsonl")
    with pytest.raises(ValueError, match=r"train\.jsonl is empty"):
        load_gsm8k("train", tmp_path)


def test_other_sources_of_the_same_shape(tmp_path):
    path = write(tmp_path / "other.jsonl", {"problem": "q", "solution": "so\n#### yes", "level": 3})
    assert load_jsonl(path, "problem", "solution") == [Problem("q", "so\n#### yes", "yes", "3")]
    with pytest.raises(ValueError, match=r"line 1: key 'question' is missing"):
        load_jsonl(path)
    with pytest.raises(FileNotFoundError, match=r"no task file at .*gone\.jsonl"):
        load_jsonl(tmp_path / "gone.jsonl")


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_is_at_least_one(tmp_path, limit):
    write(tmp_path / "train.jsonl", GOOD)
    with pytest.raises(ValueError, match=f"limit={limit} must be at least 1"):
        load_gsm8k("train", tmp_path, limit=limit)


def test_unknown_split_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"split='valid'; known: \['test', 'train'\]"):
        load_gsm8k("valid", tmp_path)


def test_missing_file_says_where_it_belongs(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_gsm8k("train", tmp_path)
    message = str(caught.value)
    assert "grpo data fetch gsm8k" in message
    assert "GRPO_DATA_DIR" in message
    for split, digest in data.GSM8K_SHA256.items():
        assert str(tmp_path / f"{split}.jsonl") in message
        assert digest in message


def test_where_the_files_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path / "env"))
    assert gsm8k_dir(tmp_path / "given") == tmp_path / "given"
    assert gsm8k_dir() == tmp_path / "env"
    monkeypatch.setenv("GRPO_DATA_DIR", "")
    checkout = Path(data.__file__).resolve().parent.parent
    assert gsm8k_dir() == checkout / "data" / "gsm8k"
    here = tmp_path / "data" / "gsm8k"
    here.mkdir(parents=True)
    assert gsm8k_dir() == here
    here.rmdir()
    monkeypatch.setattr(data, "__file__", str(tmp_path / "site" / "grpo" / "data.py"))
    assert gsm8k_dir() == here  # an installed package has no checkout around it


def test_the_real_files_load_whole(gsm8k_dir):
    train, test = load_gsm8k("train", gsm8k_dir), load_gsm8k("test", gsm8k_dir)
    assert (len(train), len(test)) == (7473, 1319)
    assert (train[0].ground_truth, test[0].ground_truth) == ("72", "18")
    assert all(re.fullmatch(r"-?\d+", problem.ground_truth) for problem in train + test)
    for split, digest in data.GSM8K_SHA256.items():
        assert hashlib.sha256((gsm8k_dir / f"{split}.jsonl").read_bytes()).hexdigest() == digest


# ---- fetching ------------------------------------------------------------------------------------------------

CONTENT = {split: json.dumps({**GOOD, "question": split * 60_000}).encode() + b"\n" for split in ("train", "test")}


class Server(ThreadingHTTPServer):
    """A file server with the habits that a test gives it, and a record of what it was asked."""

    daemon_threads = True
    ranges = True  # answers Range requests
    wrong_range = False  # with a range of its own choice
    cut: int | None = None  # sends that many bytes of the first answer, and hangs up
    status: int | None = None  # refuses with this status
    content = CONTENT

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/files"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        if self.server.status is not None:
            self.send_error(self.server.status)
            return
        body = self.server.content[Path(self.path).stem]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        if start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            first = 0 if self.server.wrong_range else start
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        sent, self.server.cut = body[start:][: self.server.cut], None
        self.wfile.write(sent)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(
        data, "GSM8K_SHA256", {split: hashlib.sha256(body).hexdigest() for split, body in CONTENT.items()}
    )
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


FETCHED = {f"{split}.jsonl": body for split, body in CONTENT.items()}


def test_fetch_downloads_both_files_and_only_once(server, tmp_path):
    folder = fetch_gsm8k(tmp_path / "new" / "gsm8k", server.url + "/", progress=False)
    assert folder == tmp_path / "new" / "gsm8k"
    assert contents(folder) == FETCHED
    assert server.requests == [("/files/train.jsonl", None), ("/files/test.jsonl", None)]
    fetch_gsm8k(folder, server.url, progress=False)
    assert len(server.requests) == 2
    assert load_gsm8k("train", folder)[0].ground_truth == "1018"


def test_fetch_goes_where_the_loader_looks(server, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path / "env"))
    assert fetch_gsm8k(base_url=server.url, progress=False) == tmp_path / "env"
    assert contents(tmp_path / "env") == FETCHED


def test_fetch_replaces_a_file_that_is_wrong_and_leaves_the_right_one(server, tmp_path):
    (tmp_path / "train.jsonl").write_bytes(CONTENT["train"])
    (tmp_path / "test.jsonl").write_bytes(b"other")
    fetch_gsm8k(tmp_path, server.url, progress=False)
    assert contents(tmp_path) == FETCHED
    assert [path for path, _ in server.requests] == ["/files/test.jsonl"]


def test_fetch_resumes_an_earlier_part(server, tmp_path):
    (tmp_path / "train.jsonl.part").write_bytes(CONTENT["train"][:1000])
    fetch_gsm8k(tmp_path, server.url, progress=False)
    assert contents(tmp_path) == FETCHED
    assert server.requests[0] == ("/files/train.jsonl", "bytes=1000-")


def test_fetch_resumes_a_transfer_that_breaks_off(server, tmp_path):
    server.cut = 70_000
    fetch_gsm8k(tmp_path, server.url, progress=False)
    assert contents(tmp_path) == FETCHED
    assert server.requests[:2] == [("/files/train.jsonl", None), ("/files/train.jsonl", "bytes=70000-")]


@pytest.mark.parametrize("part", [CONTENT["train"][:1000], b"something else"])
def test_fetch_starts_anew_where_the_server_does_not_resume(server, tmp_path, part):
    server.ranges = False
    (tmp_path / "train.jsonl.part").write_bytes(part)
    fetch_gsm8k(tmp_path, server.url, progress=False)
    assert contents(tmp_path) == FETCHED


def test_fetch_uses_a_part_that_is_already_whole(server, tmp_path):
    (tmp_path / "train.jsonl.part").write_bytes(CONTENT["train"])
    fetch_gsm8k(tmp_path, server.url, progress=False)
    assert contents(tmp_path) == FETCHED
    assert [path for path, _ in server.requests] == ["/files/test.jsonl"]


def test_fetch_drops_a_part_that_is_longer_than_the_file(server, tmp_path):
    (tmp_path / "train.jsonl.part").write_bytes(CONTENT["train"] + b"more")
    fetch_gsm8k(tmp_path, server.url, progress=False)
    assert contents(tmp_path) == FETCHED


def test_fetch_deletes_a_part_of_another_file_and_then_succeeds(server, tmp_path):
    (tmp_path / "train.jsonl.part").write_bytes(b"x" * 1000)
    with pytest.raises(FetchError, match="the download was deleted"):
        fetch_gsm8k(tmp_path, server.url, progress=False)
    assert contents(tmp_path) == {}
    fetch_gsm8k(tmp_path, server.url, progress=False)
    assert contents(tmp_path) == FETCHED


def test_fetch_refuses_the_wrong_content(server, tmp_path):
    server.content = {**CONTENT, "train": b"<html>not found</html>"}
    (tmp_path / "train.jsonl").write_bytes(b"what was there")
    with pytest.raises(FetchError) as caught:
        fetch_gsm8k(tmp_path, server.url, progress=False)
    message = str(caught.value)
    assert hashlib.sha256(b"<html>not found</html>").hexdigest() in message
    assert data.GSM8K_SHA256["train"] in message
    assert contents(tmp_path) == {"train.jsonl": b"what was there"}


def test_fetch_does_not_append_a_range_it_did_not_ask_for(server, tmp_path):
    server.wrong_range = True
    (tmp_path / "train.jsonl.part").write_bytes(CONTENT["train"][:1000])
    with pytest.raises(FetchError, match="a range not asked for"):
        fetch_gsm8k(tmp_path, server.url, progress=False)
    assert contents(tmp_path) == {"train.jsonl.part": CONTENT["train"][:1000]}


def test_fetch_does_not_insist_on_a_file_that_is_not_there(server, tmp_path):
    server.status = 404
    with pytest.raises(FetchError, match="404"):
        fetch_gsm8k(tmp_path, server.url, progress=False)
    assert len(server.requests) == 1


def test_fetch_tries_a_failing_server_again(server, tmp_path):
    server.status = 503
    with pytest.raises(FetchError, match="503"):
        fetch_gsm8k(tmp_path, server.url, progress=False)
    assert len(server.requests) == 3


def test_fetch_offline_says_where_to_put_the_files(server, tmp_path):
    server.server_close()  # the port is free now, and nobody answers
    (tmp_path / "train.jsonl.part").write_bytes(b"begun")
    with pytest.raises(FetchError) as caught:
        fetch_gsm8k(tmp_path, server.url, progress=False)
    message = str(caught.value)
    assert "could not download" in message
    assert f"{tmp_path / 'train.jsonl.part'}; the next run resumes it" in message
    for split, digest in data.GSM8K_SHA256.items():
        assert str(tmp_path / f"{split}.jsonl") in message
        assert f"{data.GSM8K_URL}/{split}.jsonl" in message
        assert digest in message


@pytest.mark.parametrize("base_url", ["file:///etc", "ftp://host/x", "files"])
def test_fetch_speaks_http_only(tmp_path, base_url):
    with pytest.raises(ValueError, match="must start with https://"):
        fetch_gsm8k(tmp_path, base_url, progress=False)


def test_fetch_knows_the_published_hashes():
    assert data.GSM8K_URL.startswith("https://")
    assert data.GSM8K_SHA256 == {
        "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
        "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    }
