import json

import pytest

from grpo.baselines import (
    BaselineSettings,
    baseline_table,
    baselines,
    by_rule,
    category,
    format_table,
    load_baselines,
    plot_categories,
    show_examples,
)
from grpo.cli import main
from grpo.tasks import load_test_problems

TINY = BaselineSettings(
    model="tiny", prompts=("tiny_r1_zero", "tiny_question_only"), data="words", n=20, max_new_tokens=40, device="cpu"
)


def record(format_reward: float, answer_reward: float, strict: float, tokens: int = 3, reason: str = "stop") -> dict:
    verdict = {"reward": answer_reward, "format_reward": format_reward, "answer_reward": answer_reward}
    return {
        "number": 0,
        "ground_truth": "5",
        "response": "x",
        "tokens": tokens,
        "finish_reason": reason,
        **verdict,
        **{f"strict_{name}": min(value, strict) for name, value in verdict.items()},
    }


RECORDS = [record(1, 1, 1), record(1, 1, 0), record(1, 0, 1), record(0, 0, 1, tokens=7, reason="length")]


def test_categories_by_hand() -> None:
    assert [category(r) for r in RECORDS] == ["format_and_right", "format_and_right", "format_only", "neither"]
    assert [category(r) for r in by_rule(RECORDS, "strict")] == [
        "format_and_right",
        "neither",
        "format_only",
        "neither",
    ]


def test_table_counts_by_hand() -> None:
    table = baseline_table({"a": RECORDS, "not asked yet": []})
    assert list(table) == ["a"]
    normal, strict = table["a"]["normal"], table["a"]["strict"]
    assert (normal.format_and_right, normal.format_only, normal.neither) == (2, 1, 1)
    assert (strict.format_and_right, strict.format_only, strict.neither) == (1, 1, 2)
    assert (normal.mean_tokens, normal.cut_off) == (4.0, 0.25)
    assert "0.5000 [0.1500, 0.8500]" in format_table(table)  # Wilson's interval of 2 of 4


def test_figure_has_the_counts_of_each_row() -> None:
    (axes,) = plot_categories(baseline_table({"a": RECORDS})).axes
    assert [text.get_text() for text in axes.texts] == ["2 / 1 / 1", "1 / 1 / 2"]
    widths = [patch.get_width() for patch in axes.patches]
    assert widths == [50, 25, 25, 25, 25, 50]


def test_examples_name_a_category_without_any() -> None:
    problems = load_test_problems("words", 1)
    text = show_examples("a", RECORDS[:1], problems, 2)
    assert "a: format right, answer wrong: none" in text
    assert problems[0].question in text


def test_one_run_and_the_same_run_cut_in_two_give_the_same_files(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("grpo.baselines.QUESTIONS_AT_ONCE", 8)
    monkeypatch.setattr("grpo.evaluation.QUESTIONS_AT_ONCE", 8)

    def settings(name: str) -> BaselineSettings:
        return BaselineSettings(**{**vars(TINY), "out": str(tmp_path / name)})

    whole = baselines(settings("whole"))
    text = capsys.readouterr().out
    line = json.loads(text.splitlines()[-1])
    assert line["n"] == 20
    assert line["counts"]["tiny_r1_zero"]["normal"] == [
        getattr(whole["tiny_r1_zero"]["normal"], key) for key in ("format_and_right", "format_only", "neither")
    ]
    runs = load_baselines(tmp_path / "whole")
    assert [r["number"] for r in runs["tiny_r1_zero"]] == list(range(20))
    assert (tmp_path / "whole" / "categories.png").stat().st_size > 1000

    # A stop in the eleventh line of the first file: one whole call of 8 is kept.
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "settings.json").write_text((tmp_path / "whole" / "settings.json").read_text())
    lines = (tmp_path / "whole" / "tiny_r1_zero.jsonl").read_text().splitlines(keepends=True)
    (cut / "tiny_r1_zero.jsonl").write_text("".join(lines[:10]) + lines[10][:20])
    baselines(settings("cut"))
    for name in ("tiny_r1_zero.jsonl", "tiny_question_only.jsonl", "summary.json"):
        assert (cut / name).read_text() == (tmp_path / "whole" / name).read_text()

    # Once more: nothing is sampled again.
    capsys.readouterr()
    baselines(settings("cut"))
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["tokens_per_second"] is None


def test_a_folder_of_other_settings_is_refused_and_kept(tmp_path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({**vars(TINY), "seed": 7}))
    with pytest.raises(ValueError, match=r"holds baselines of other settings \(.*seed: 7 there, 0 now"):
        baselines(BaselineSettings(**{**vars(TINY), "out": str(tmp_path)}))


def test_a_folder_of_something_else_is_refused(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no baselines"):
        baselines(BaselineSettings(**{**vars(TINY), "out": str(tmp_path)}))
    with pytest.raises(FileNotFoundError, match="no baselines in"):
        load_baselines(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": ()}, r"prompts=\(\) must name at least one"),
        ({"prompts": ("r1_zero", "r1_zero")}, "each once"),
        ({"n": 0}, "n=0 must be at least 1"),
        ({"examples": -1}, "examples=-1"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"max_new_tokens": 0}, "max_tokens=0"),
    ],
)
def test_bad_settings_are_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BaselineSettings(**{**vars(TINY), **change})


def test_the_command_reports_bad_input_in_one_line(capsys) -> None:
    assert main(["baselines", "--model", "tiny", "--data", "wrods"]) == 2
    assert "data='wrods'" in capsys.readouterr().err
