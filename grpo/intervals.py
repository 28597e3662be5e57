"""How sure a mean is: Student's t intervals over seeds, Wilson's for a share of right answers; without scipy."""

from math import atan, cos, pi, sin, sqrt

import torch
from torch import Tensor


def student_t_cdf(t: float, dof: int) -> float:
    """Return P(T <= t) for an integer number of degrees of freedom (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4)."""
    if dof < 1:
        raise ValueError(f"dof={dof} must be at least 1")
    theta = atan(t / sqrt(dof))
    term = total = 1.0 if dof % 2 == 0 else cos(theta)
    for k in range(2 if dof % 2 == 0 else 3, dof, 2):
        term *= (k - 1) / k * cos(theta) ** 2
        total += term
    if dof % 2 == 0:
        inside = sin(theta) * total
    else:
        inside = 2 / pi * (theta + (sin(theta) * total if dof > 1 else 0.0))
    return 0.5 + inside / 2


def student_t_quantile(probability: float, dof: int) -> float:
    """Return the t with P(T <= t) = probability, by bisection; for example 1.998 for 0.975 and 63."""
    if not 0 < probability < 1:
        raise ValueError(f"probability={probability} must be between 0 and 1")
    low, high = -1.0, 1.0
    while student_t_cdf(low, dof) > probability:
        low *= 2
    while student_t_cdf(high, dof) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_cdf(middle, dof) < probability else (low, middle)
    return (low + high) / 2


def mean_interval(values: Tensor, confidence: float = 0.95, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Return the mean over `dim` (the seeds) and the half width of its Student's t interval.

    Raises ValueError for fewer than two values: one run says nothing about the spread.
    """
    count = values.shape[dim]
    if count < 2:
        raise ValueError(f"values has {count} entries along dim={dim}; an interval needs at least 2")
    half = student_t_quantile((1 + confidence) / 2, count - 1) * values.std(dim=dim) / sqrt(count)
    return values.mean(dim=dim), half


def describe(values: Tensor, digits: int = 2) -> str:
    """Return "mean ± half width" of a 95% interval over the values, (seeds,), for printing."""
    mean, half = mean_interval(values.to(torch.float64))
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def wilson_interval(right: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """95% confidence interval of a proportion, `right` of n (Wilson 1927); it behaves at 0 and n, unlike p +- 1.96 s.

    >>> [round(x, 3) for x in wilson_interval(5, 10)]
    [0.237, 0.763]
    """
    if not 0 <= right <= n or n < 1:
        raise ValueError(f"right={right!r} of n={n!r}: expected 0 <= right <= n and n >= 1")
    p = right / n
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return center - half, center + half
