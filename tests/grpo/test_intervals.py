import pytest
import torch

from grpo import intervals


# A table of Student's t, two-sided 95%.
@pytest.mark.parametrize(
    ("dof", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (15, 2.1314), (63, 1.9983), (255, 1.9693)],
)
def test_quantiles_of_the_table(dof, quantile):
    assert intervals.student_t_quantile(0.975, dof) == pytest.approx(quantile, abs=6e-5)
    assert intervals.student_t_quantile(0.025, dof) == pytest.approx(-quantile, abs=6e-5)
    assert intervals.student_t_cdf(quantile, dof) == pytest.approx(0.975, abs=1e-5)


def test_interval_by_hand():
    # Mean 3, standard deviation 2, four values: half width 3.1824 * 2 / 2.
    values = torch.tensor([1.0, 3.0, 3.0, 5.0], dtype=torch.float64) * (2 / values_std()) + 3 - 3 * (2 / values_std())
    mean, half = intervals.mean_interval(values)
    assert mean.item() == pytest.approx(3)
    assert half.item() == pytest.approx(3.1824, abs=1e-4)
    assert intervals.describe(values) == "3.00 ± 3.18"


def values_std():
    return torch.tensor([1.0, 3.0, 3.0, 5.0], dtype=torch.float64).std()


def test_interval_covers_the_truth_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(20_000, 5, generator=generator, dtype=torch.float64)
    mean, half = intervals.mean_interval(draws, dim=1)
    covered = (mean.abs() < half).double().mean().item()
    assert covered == pytest.approx(0.95, abs=0.006)


def test_one_value_has_no_interval():
    with pytest.raises(ValueError, match="an interval needs at least 2"):
        intervals.mean_interval(torch.tensor([1.0]))
    with pytest.raises(ValueError, match="dof=0 must be at least 1"):
        intervals.student_t_cdf(0.0, 0)
    with pytest.raises(ValueError, match=r"probability=1\.0 must be between"):
        intervals.student_t_quantile(1.0, 3)
