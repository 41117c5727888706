"""Bytes of ring collectives, against rings that are played through."""

from __future__ import annotations

import math
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.apps.planning.cluster import LINK_SHARE, Cluster
from heedful.apps.planning.layouts import Group, all_reduce_bytes, gather_bytes, traffic

from .devices_for_tests import device


def play_all_reduce(tensors: list[list[int]]) -> tuple[list[list[int]], list[int], list[int]]:
    """Play the ring: results, numbers that each device sent to scatter, and to gather."""
    n, chunk = len(tensors), len(tensors[0]) // len(tensors)
    held = [[t[i * chunk : (i + 1) * chunk] for i in range(n)] for t in tensors]
    scattered, gathered = [0] * n, [0] * n
    for turn in range(n - 1):
        sent = [list(held[rank][(rank - turn) % n]) for rank in range(n)]
        for rank in range(n):
            place = (rank - turn) % n
            mine = held[(rank + 1) % n][place]
            held[(rank + 1) % n][place] = [a + b for a, b in zip(mine, sent[rank], strict=True)]
            scattered[rank] += chunk
    for turn in range(n - 1):
        sent = [list(held[rank][(rank + 1 - turn) % n]) for rank in range(n)]
        for rank in range(n):
            held[(rank + 1) % n][(rank + 1 - turn) % n] = sent[rank]
            gathered[rank] += chunk
    return [list(chain(*chunks)) for chunks in held], scattered, gathered


@given(st.integers(1, 7), st.integers(1, 4), st.randoms(use_true_random=False))
def test_bytes_are_those_of_a_played_ring(n: int, chunk: int, random) -> None:
    tensors = [[random.randrange(100) for _ in range(n * chunk)] for _ in range(n)]
    results, scattered, gathered = play_all_reduce(tensors)
    total = [sum(numbers) for numbers in zip(*tensors, strict=True)]
    assert all(result == total for result in results)
    number_bytes = 4
    nbytes = number_bytes * n * chunk
    for rank in range(n):
        both = number_bytes * (scattered[rank] + gathered[rank])
        assert gather_bytes(n, nbytes) == pytest.approx(number_bytes * scattered[rank])
        assert gather_bytes(n, nbytes) == pytest.approx(number_bytes * gathered[rank])
        assert all_reduce_bytes(n, nbytes) == pytest.approx(both)


def test_a_ring_through_hosts_uses_the_networks_of_its_members() -> None:
    cluster = Cluster(device=device(link=100.0, network=10.0), per_host=8, hosts=2)
    assert cluster.bandwidth(8, 8) == LINK_SHARE * 100
    assert cluster.bandwidth(16, 8) == LINK_SHARE * 80
    assert cluster.bandwidth(16, 16) == LINK_SHARE * 100
    assert cluster.bandwidth(2, 1) == LINK_SHARE * 10


def test_computing_hides_all_but_one_message() -> None:
    cluster = Cluster(device=device(link=1e9 / LINK_SHARE), per_host=4)
    group = Group(4, 4)
    alone = traffic("a", 2e9, group, cluster, calls=1)
    assert alone.seconds == alone.shown == pytest.approx(2.0, rel=1e-3)
    hidden = traffic("a", 2e9, group, cluster, calls=10, behind=5.0)
    assert hidden.shown == pytest.approx(0.2, rel=1e-3)
    partly = traffic("a", 2e9, group, cluster, calls=10, behind=0.5)
    assert partly.shown == pytest.approx(1.5, rel=1e-3)


def test_many_short_messages_take_their_latency() -> None:
    cluster = Cluster(device=device(), per_host=8)
    few = traffic("a", 1.0, Group(8, 8), cluster, calls=1)
    many = traffic("a", 1.0, Group(8, 8), cluster, calls=100)
    assert many.seconds == pytest.approx(100 * few.seconds, rel=1e-3)
    assert few.seconds >= 2 * math.log2(8) * 1e-6


def test_nobody_sends_to_itself() -> None:
    cluster = Cluster(device=device(), per_host=1)
    assert traffic("a", 0.0, Group(1, 1), cluster, calls=5).seconds == 0


def test_a_processor_hides_nothing() -> None:
    cluster = Cluster(device=device(overlaps=False), per_host=4)
    sent = traffic("a", 2e9, Group(4, 4), cluster, calls=10, behind=5.0)
    assert sent.shown == sent.seconds
