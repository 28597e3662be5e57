import pytest
import torch

from toyrl.optimizers import SGD, Adam

SHAPES = [(5, 10), (3, 10, 10), (10, 3, 10)]


def drawn(seeds, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    starts = [torch.randn(seeds, *shape, generator=generator) for shape in SHAPES]
    # Gradients of very different sizes, which is where rounding shows.
    gradients = [
        [torch.randn(p.shape, generator=generator) * 10 ** torch.randn(p.shape, generator=generator) for p in starts]
        for _ in range(steps)
    ]
    return starts, gradients


@pytest.mark.parametrize(
    ("ours", "reference"),
    [(Adam, lambda p: torch.optim.Adam(p, lr=1e-2)), (SGD, lambda p: torch.optim.SGD(p, lr=1e-2))],
)
def test_steps_equal_torchs(ours, reference):
    starts, gradients = drawn(seeds=2, steps=20)
    parameters = [start.double() for start in starts]
    theirs = [start.double().requires_grad_() for start in starts]
    optimizer, reference = ours(parameters, 1e-2), reference(theirs)
    for step in gradients:
        optimizer.step(tuple(gradient.double() for gradient in step))
        for parameter, gradient in zip(theirs, step, strict=True):
            parameter.grad = gradient.double()
        reference.step()
    for mine, other in zip(parameters, theirs, strict=True):
        torch.testing.assert_close(mine, other.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("first", range(0, 20, 3))
@pytest.mark.parametrize("count", [1, 3])
def test_adam_of_a_few_seeds_is_bit_for_bit_that_among_many(first, count):
    starts, gradients = drawn(seeds=24, steps=10)
    few = [start[first : first + count].clone() for start in starts]
    optimizer_few, optimizer_many = Adam(few, 1e-3), Adam(starts, 1e-3)
    for step in gradients:
        optimizer_few.step(tuple(gradient[first : first + count].clone() for gradient in step))
        optimizer_many.step(tuple(step))
    for one, many in zip(few, starts, strict=True):
        assert torch.equal(one, many[first : first + count])


def test_first_adam_step_is_the_learning_rate():
    parameter = torch.tensor([1.0, -2.0])
    Adam([parameter], learning_rate=0.1).step((torch.tensor([5.0, -0.01]),))
    torch.testing.assert_close(parameter, torch.tensor([0.9, -1.9]), rtol=1e-5, atol=1e-6)
