"""Ten thousand short requests: the same texts at the end as at the beginning, and no more memory or descriptors."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

import paceline
from test_server import CHAT, PROMPTS, TEXT, client, serving

REQUESTS, PART, CLIENTS = 10_000, 1_000, 8
KINDS = 50
"""Different requests."""
MEGABYTE = 1 << 20
GROWTH = 40
"""Megabytes by which the process may grow after the first three tenths, in which its caches fill."""


def kinds() -> list[tuple[str, dict[str, Any]]]:
    rng, found = random.Random(11), list[tuple[str, dict[str, Any]]]()
    for number in range(KINDS):
        prompt = f"{rng.choice(PROMPTS)} {number % 7}"
        body: dict[str, Any] = {"max_tokens": rng.randint(2, 10), "seed": number, "temperature": rng.choice([0, 0.8])}
        body |= rng.choice([{}, {"speculative": False}, {"method": "lookup"}, {"num_draft_tokens": 2}, {"stop": ["e"]}])
        if number % 3:
            found.append((TEXT, {**body, "prompt": prompt}))
        else:
            found.append((CHAT, {**body, "messages": [{"role": "user", "content": prompt}]}))
    return found


def resident() -> float:
    """Megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


async def part(http: httpx.AsyncClient, asked: list[tuple[str, dict[str, Any]]], count: int) -> dict[str, Any]:
    """So many requests: the hash of the texts of each kind, and how much was drafted and accepted."""
    texts, numbers = dict[int, set[str]](), iter(range(count))
    drafted = accepted = 0

    async def worker() -> None:
        nonlocal drafted, accepted
        for number in numbers:
            path, body = asked[number % len(asked)]
            answer = (await http.post(path, json=body)).json()
            choice = answer["choices"][0]
            text = choice["message"]["content"] if path == CHAT else choice["text"]
            texts.setdefault(number % len(asked), set()).add(hashlib.sha256(text.encode()).hexdigest())
            drafted += answer["timings"]["draft_n"]
            accepted += answer["timings"]["draft_n_accepted"]

    await asyncio.gather(*(worker() for _ in range(CLIENTS)))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return {"texts": texts, "drafted": drafted, "accepted": accepted, "rss": resident(), "descriptors": descriptors}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc")
def test_ten_thousand_requests_leave_nothing_behind() -> None:
    lm, asked = paceline.load("pocket"), kinds()

    async def soak() -> list[dict[str, Any]]:
        with serving(lm, at_once=CLIENTS) as served:
            async with client(served) as http:
                found = [await part(http, asked, PART) for _ in range(REQUESTS // PART)]
            assert (served.serving.running, served.serving.waiting, served.admitted) == (0, 0, 0)
        return found

    parts = asyncio.run(soak())
    for number, one in enumerate(parts):
        print(f"{(number + 1) * PART} requests: {one['rss']:.0f} MB, {one['descriptors']} descriptors, ", end="")
        print(f"{one['accepted']} of {one['drafted']} drafted tokens accepted")
    assert all(len(hashes) == 1 for one in parts for hashes in one["texts"].values())
    assert all(one["texts"] == parts[0]["texts"] for one in parts)
    assert parts[-1]["descriptors"] <= parts[0]["descriptors"] + 2
    assert parts[-1]["rss"] < parts[2]["rss"] + GROWTH
    rates = [one["accepted"] / max(1, one["drafted"]) for one in parts]
    assert min(rates[1:]) > 0.5 * max(rates[1:])
