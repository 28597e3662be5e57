import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """These tensors are too small to share; two threads on a busy machine wait for each other many times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def said(capsys):
    """A function that runs a notebook's check on an answer and returns the one line that the check prints."""

    def said(check, answer):
        assert check(answer) is None
        message = capsys.readouterr().out
        assert message.count("\n") == 1
        return message.strip()

    return said
