"""Gradient accumulation: one optimiser step over a large batch, of which the network sees only a part at a time.

`batch_size` stays the number of samples in an optimiser step; `gradient_accumulation: N` passes them through the network in N
micro-batches, so that only one micro-batch's activations are in memory. What is learned does not change: each micro-batch's gradient is
added to the parameters' `.grad` before the one step, and everything that looks at the batch as a whole (the normalisation of
advantages, gradient clipping, early stopping by KL divergence) still does.

The forward passes named by an algorithm are wrapped. Forward, a micro-batch runs without keeping its activations; backward, each runs
again with them and releases them before the next (`torch.utils.checkpoint`, which replays the random numbers too). The price is that
second forward pass, roughly a third more arithmetic per update.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from torch.utils.checkpoint import checkpoint

Forward = Callable[..., Any]


def in_micro_batches(forward: Forward, count: int) -> Forward:
    """`forward`, over `count` micro-batches of its arguments' first axis while gradients are recorded; unchanged otherwise.

    The arguments are tensors, or dictionaries of tensors, that share their first axis. Results are joined along theirs; None stays None.
    """

    def split(*batch: Any) -> Any:
        samples = _samples(batch[0])
        if not torch.is_grad_enabled() or samples < 2:
            return forward(*batch)
        parts = [_split(argument, min(count, samples)) for argument in batch]
        results = [checkpoint(forward, *part, use_reentrant=False) for part in zip(*parts, strict=True)]
        return _joined(results)

    return split


def accumulate(model: BaseAlgorithm, forwards: tuple[str, ...], count: int) -> None:
    """Makes the `forwards` of `model` (dotted names of methods, from the model on) run in `count` micro-batches from now on."""
    for name in forwards:
        *path, method = name.split(".")
        owner = reduce(getattr, path, model)
        setattr(owner, method, in_micro_batches(getattr(owner, method), count))


def _samples(argument: Any) -> int:
    first = next(iter(argument.values())) if isinstance(argument, dict) else argument
    return int(first.shape[0])


def _split(argument: Any, count: int) -> list[Any]:
    if isinstance(argument, dict):
        columns = {key: torch.tensor_split(value, count) for key, value in argument.items()}
        return [{key: parts[index] for key, parts in columns.items()} for index in range(count)]
    return list(torch.tensor_split(argument, count))


def _joined(results: list[Any]) -> Any:
    first = results[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        return tuple(_joined(list(column)) for column in zip(*results, strict=True))
    return torch.cat(results)
