import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """These tensors are too small to share; two threads on a busy machine wait for each other many times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
