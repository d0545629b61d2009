"""Labels from many machines, by Ray: each loads the model and makes parts, this one writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import InputError, need
from paceline_make.cluster import innermost, join
from paceline_make.heads.store import Advance, LabelStore, Stored
from paceline_make.texts.fields import Passage

if TYPE_CHECKING:
    from paceline_make.heads.labels import Teacher

Open = Callable[[Sequence[Passage]], "Teacher"]
"""Loads the model on another machine, to label these passages."""


class Labeller:
    """The actor on a machine of the cluster."""

    def __init__(
        self, open_teacher: Open, passages: Sequence[Passage], store: LabelStore, fingerprint: str, threads: int
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self.teacher, self.store = open_teacher(passages), store
        if (found := self.teacher.target.fingerprint()) != fingerprint:
            raise InputError(f"a machine of the cluster has another model by that name: {found}, not {fingerprint}")

    def part(self, number: int) -> Stored:
        return self.store.labelled(self.teacher, number)


def fill_on_cluster(
    address: str, open_teacher: Open, store: LabelStore, passages: Sequence[Passage], fingerprint: str, advance: Advance
) -> None:
    """The labels of `LabelStore.fill`. A machine that is lost is done without, as long as another is left."""
    need("ray", "labelling on a cluster", "cluster")
    import ray

    waiting = store.missing
    advance(store.parts - len(waiting), store.parts)
    if not waiting:
        return
    join(address)
    text = ray.put(passages)
    labellers = list(_labellers(open_teacher, text, store, fingerprint))
    try:
        _share_out(store, waiting, labellers, advance)
    except BaseException as error:
        raise innermost(error) from None
    finally:
        for each in labellers:
            ray.kill(each)


def _labellers(*arguments: Any) -> Iterator[Any]:
    """One to a GPU; where there is none, one to a machine, with all of its processors."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote: Any = ray.remote(Labeller)
    for node in ray.nodes():
        has = node["Resources"]
        cpus, gpus = int(has.get("CPU", 0)), int(has.get("GPU", 0))
        if not (node["Alive"] and cpus):
            continue
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        for _ in range(max(1, gpus)):
            share = max(1, cpus // max(1, gpus))
            yield remote.options(num_cpus=share, num_gpus=min(1, gpus), scheduling_strategy=there).remote(
                *arguments, share
            )


def _share_out(store: LabelStore, waiting: list[int], labellers: list[Any], advance: Advance) -> None:
    import ray

    running: dict[Any, tuple[Any, int]] = {}
    idle, lost = list(labellers), 0
    while waiting or running:
        while waiting and idle:
            labeller, part = idle.pop(), waiting.pop(0)
            running[labeller.part.remote(part)] = labeller, part
        if not running:
            raise InputError(f"all {lost} machines of the cluster were lost; the labels made so far are kept")
        (done,), _ = ray.wait(list(running), num_returns=1)
        labeller, part = running.pop(done)
        try:
            store.write(part, ray.get(done))
        except ray.exceptions.ActorDiedError as error:
            if "creation task" in str(error):
                raise _refusal(error) from None
            lost += 1
            waiting.append(part)
            continue
        idle.append(labeller)
        advance(store.parts - len(waiting) - len(running), store.parts)


def _refusal(error: Any) -> Exception:
    """Why a machine could not begin."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "Error" in line), lines[-1])
    return InputError(f"a machine of the cluster could not begin to label: {said.rpartition('Error: ')[2]}")
