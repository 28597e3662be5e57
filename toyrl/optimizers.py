"""Adam and SGD on stacked parameters, elementwise and to the last bit the same for a seed whatever seeds run beside it.

`torch.optim.Adam` is not used for two reasons: its fused form rounds the last few numbers of a tensor differently, so a
seed's curve would depend on how many seeds there are; its other forms take twice as long.
"""

from math import sqrt

import torch
from torch import Tensor


class SGD:
    """Plain gradient descent: p <- p - lr g."""

    def __init__(self, parameters: list[Tensor], learning_rate: float) -> None:
        self.parameters, self.learning_rate = parameters, learning_rate

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...]) -> None:
        """Move the parameters in place, one gradient a parameter."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=self.learning_rate)


class Adam:
    """Adam (Kingma & Ba 2015): p <- p - lr (m / c1) / (sqrt(v / c2) + eps), with c = 1 - beta^steps.

    m and v are the running means of the gradient and of its square.
    """

    def __init__(
        self,
        parameters: list[Tensor],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters, self.learning_rate, self.betas, self.eps = parameters, learning_rate, betas, eps
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...]) -> None:
        """Move the parameters in place, one gradient a parameter; the gradients' memory is used up."""
        self.steps += 1
        beta1, beta2 = self.betas
        root = sqrt(1 - beta2**self.steps)
        scale = self.learning_rate * root / (1 - beta1**self.steps)
        for parameter, gradient, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            # The gradient has done its work: its memory, still in the cache, takes the divisor.
            divisor = torch.sqrt(square, out=gradient).add_(self.eps * root)
            parameter.addcdiv_(mean, divisor, value=-scale)


OPTIMIZERS = {"adam": Adam, "sgd": SGD}
