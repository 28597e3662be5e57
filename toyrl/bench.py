"""How fast is training all seeds at once? Run `python -m toyrl.bench`; the last line is one line of JSON.

Both sides train the lecture's standard run (100 epochs of 10 inner steps, 3 prompts, 10 responses, centered rewards,
positions_right, Adam at 1e-3). `lecture_run` is one seed in one process, written the way the lecture writes it: an
nn.Module, Python loops over prompts and responses in the reward, on rows of tensors, autograd and an optimizer step an
inner step, a record a step. For fairness it is timed a second time with lists in the reward, which is the obvious remedy
(`lists_ratio_256`).
`toyrl` runs the same for 256 seeds in one call, dealt out to two processes (`runs_per_second_ratio_256`) and in one process
(`one_process_ratio_256`), and for one seed. Repeats alternate between the sides, so that a busy moment hits all, and the
best of each counts.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from toyrl.parallel import train_in_processes
from toyrl.policy import Policy, init_policy
from toyrl.settings import Settings
from toyrl.sorting import DEFAULT_PROMPTS
from toyrl.training import train


class LectureModel(nn.Module):
    """The lecture's model for one seed: a shared embedding, a matrix a prompt position, a matrix a response position."""

    def __init__(self, start: Policy) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(start.embedding[0].clone(), freeze=False)
        self.encode_weights = nn.Parameter(start.encode[0].clone())
        self.decode_weights = nn.Parameter(rearrange(start.decode[0], "dim2 pos dim1 -> pos dim2 dim1").contiguous())

    def forward(self, prompts: Tensor) -> Tensor:
        """Turn prompts (batch, pos) into logits (batch, pos, vocab)."""
        embeddings = self.embedding(prompts)
        encoded = einsum(embeddings, self.encode_weights, "batch pos dim1, pos dim1 dim2 -> batch dim2")
        decoded = einsum(encoded, self.decode_weights, "batch dim2, pos dim2 dim1 -> batch pos dim1")
        return einsum(decoded, self.embedding.weight, "batch pos dim1, vocab dim1 -> batch pos vocab")


def lecture_reward(prompt: Sequence | Tensor, response: Sequence | Tensor) -> int:
    """Return how many positions of the response match the sorted prompt; rows of tensors or lists."""
    assert len(prompt) == len(response)
    return sum(1 for x, y in zip(response, sorted(prompt), strict=True) if x == y)


def lecture_rewards(prompts: Tensor, responses: Tensor, lists: bool) -> Tensor:
    """Reward every response by a Python loop: (batch, trial)."""
    batch_size, num_responses, _ = responses.shape
    rewards = torch.empty(batch_size, num_responses, dtype=torch.float32)
    for i in range(batch_size):
        for j in range(num_responses):
            prompt, response = prompts[i, :], responses[i, j, :]
            rewards[i, j] = lecture_reward(*((prompt.tolist(), response.tolist()) if lists else (prompt, response)))
    return rewards


def lecture_log_probs(prompts: Tensor, responses: Tensor, model: LectureModel) -> Tensor:
    """Return the log-probs of the responses' tokens: (batch, trial, pos)."""
    log_probs = model(prompts).log_softmax(dim=-1)
    num_responses = responses.shape[1]
    log_probs = log_probs.unsqueeze(1).expand(-1, num_responses, -1, -1)
    return log_probs.gather(dim=-1, index=responses.unsqueeze(-1)).squeeze(-1)


def lecture_run(
    seed: int, epochs: int = 100, inner_steps: int = 10, num_responses: int = 10, lists: bool = False
) -> list[dict[str, float]]:
    """Train one seed; return a record a step (the loss, and the mean reward of the samples in use)."""
    generator = torch.Generator().manual_seed(seed)
    prompts = DEFAULT_PROMPTS
    model = LectureModel(init_policy([seed]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    records = []
    for epoch in range(epochs):
        with torch.no_grad():
            probs = rearrange(model(prompts).softmax(dim=-1), "batch pos vocab -> (batch pos) vocab")
            flat = torch.multinomial(probs, num_responses, replacement=True, generator=generator)
            responses = rearrange(flat, "(batch pos) trial -> batch trial pos", batch=len(prompts))
            rewards = lecture_rewards(prompts, responses, lists)
            deltas = rewards - rewards.mean(dim=-1, keepdim=True)
        for step in range(inner_steps):
            log_probs = lecture_log_probs(prompts, responses, model)
            loss = -einsum(log_probs, deltas, "batch trial pos, batch trial -> batch trial pos").mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            records.append({"epoch": epoch, "step": step, "loss": loss.item(), "reward": rewards.mean().item()})
    return records


def seconds(function: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """Measure, print a few lines, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=256, help="seeds trained at once")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each side; the best counts")
    parser.add_argument("--workers", type=int, default=2, help="processes that the many seeds are dealt out to")
    args = parser.parse_args()
    torch.set_num_threads(1)  # more gain nothing here: the tensors are small
    sides: dict[str, Callable[[], object]] = {
        "lecture loop, one seed": lambda: lecture_run(0),
        "lecture loop, lists in the reward": lambda: lecture_run(0, lists=True),
        "toyrl, one seed": lambda: train(Settings(), seeds=1),
        f"toyrl, {args.seeds} seeds, one process": lambda: train(Settings(), args.seeds),
        f"toyrl, {args.seeds} seeds, {args.workers} processes": lambda: train_in_processes(
            Settings(), args.seeds, args.workers
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(args.repeats + 1):  # the first is a warm-up
        for name, function in sides.items():
            took = seconds(function)
            if repeat:
                times[name].append(took)
    best = {name: min(took) for name, took in times.items()}
    for name, took in best.items():
        print(f"{name:35s} {took:6.2f} s")
    lecture, with_lists, one, process, many = best.values()
    result = {
        "seeds": args.seeds,
        "workers": args.workers,
        "load": round(os.getloadavg()[0], 1),
        "lecture_seconds": round(lecture, 3),
        "lecture_lists_seconds": round(with_lists, 3),
        "one_seed_seconds": round(one, 3),
        "one_process_seconds": round(process, 3),
        "many_seconds": round(many, 3),
        "lists_ratio_256": round(args.seeds / many * with_lists, 1),
        "one_process_ratio_256": round(args.seeds / process * lecture, 1),
        "runs_per_second_ratio_256": round(args.seeds / many * lecture, 1),
        "one_seed_ratio": round(lecture / one, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
