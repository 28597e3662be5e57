"""A baseline of one's own: the leave-one-out mean of a group, shrunk toward the mean of the other groups.

The best baseline for a response, short of weighing gradients, is the success rate p of its prompt. Leave-one-out estimates
it from G - 1 rewards, with variance p (1 - p) / (G - 1). The other prompts of the batch say something about p too: where
prompts are alike, the mean m of their rewards is close to it. So mix the two, as if m had been seen in k more rewards:

    b_i = (sum of the others in the group + k m) / (G - 1 + k)

With success rates spread by a variance tau^2 over prompts, the mean squared error is least at k = E[p (1 - p)] / tau^2
(James & Stein 1961; Efron & Morris 1973). No b_i looks at the reward of response i itself, so the gradient's expectation
stays that of the expected reward, as with leave-one-out. And a group whose rewards are all equal keeps a signal: all right
in a batch of mostly wrong ones is good news. Where prompts differ much, k = 4 mixes in too much, and it should lose.
"""

from torch import Tensor

K = 4.0


def shrunk(rewards: Tensor) -> Tensor:
    """Baselines (groups, group_size) for rewards of the same shape; a single group has no others, and is not shrunk."""
    groups, size = rewards.shape
    others_in_group = rewards.sum(dim=1, keepdim=True) - rewards
    if groups == 1:
        return others_in_group / (size - 1)
    other_groups = (rewards.sum() - rewards.sum(dim=1, keepdim=True)) / ((groups - 1) * size)
    return (others_in_group + K * other_groups) / (size - 1 + K)
