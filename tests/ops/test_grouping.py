"""Tokens by group: rows taken and added, and the layout in blocks."""

from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cosformer.ops.grouping import add_rows, group_blocks, sort_ranks, take_rows


@given(data=st.data(), n=st.integers(1, 30), num_groups=st.integers(1, 6), block=st.integers(1, 7))
@settings(max_examples=200, deadline=None)
def test_blocks_hold_one_group_each_in_order(data, n, num_groups, block):
    group = torch.tensor(data.draw(st.lists(st.integers(0, num_groups), min_size=n, max_size=n)))
    token, slot = group_blocks(group[None, None], num_groups, block)
    token, slot = token[0, 0], slot[0, 0]
    seats = [[i for i in row if i < n] for row in token.tolist()]
    for g in range(num_groups):
        mine = [row for row in seats if row and group[row[0]] == g]
        assert list(chain(*mine)) == (group == g).nonzero().flatten().tolist()  # all of them, in order, and nobody else
        assert all(len(row) == block for row in mine[:-1])  # a group's last block alone may have room
    for i in range(n):
        if group[i] == num_groups:
            assert slot[i] == token.numel()
        else:
            assert token.flatten()[slot[i]] == i


def test_rows_are_taken_and_added_per_head():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 5, 4, generator=generator)
    index = torch.randint(0, 5, (2, 3, 7), generator=generator)
    expected = torch.stack([torch.stack([x[b, h, index[b, h]] for h in range(3)]) for b in range(2)])
    assert torch.equal(take_rows(x, index), expected)
    assert torch.equal(take_rows(x, index.view(2, 3, 7, 1))[..., 0, :], expected)
    assert torch.equal(take_rows(x, torch.full((2, 3, 1), 9)), x[:, :, -1:])

    sums = add_rows(expected, index, 6)
    one_hot = torch.nn.functional.one_hot(index, 6).float()
    torch.testing.assert_close(sums, one_hot.mT @ expected)


def test_gradients_go_where_the_rows_came_from():
    x = torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[[3, 3, 0], [1, 0, 1]]])
    assert torch.autograd.gradcheck(lambda x: take_rows(x, index), x)
    assert torch.autograd.gradcheck(lambda x: add_rows(x, torch.tensor([[[0, 2, 2, 1], [1, 1, 1, 0]]]), 3), x)


def test_ranks_are_the_inverse():
    order = torch.stack([torch.randperm(9) for _ in range(4)])
    assert torch.equal(order.gather(1, sort_ranks(order)), torch.arange(9).expand(4, -1))


@pytest.mark.parametrize("num_blocks", [3, 4])
def test_fewer_blocks_when_the_caller_knows(num_blocks):
    group = torch.tensor([[[0, 1, 2, 0, 1, 3]]])
    token, slot = group_blocks(group, 3, 2, num_blocks=num_blocks)
    assert token[0, 0, :3].tolist() == [[0, 3], [1, 4], [2, 6]]
    assert slot[0, 0].tolist() == [0, 2, 4, 1, 3, 2 * num_blocks]
